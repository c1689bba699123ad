"""Old name of `prorl_mq.store.server.acl`, a program; it goes with the next release."""

import warnings

from prorl_mq.store.server.acl import main

if __name__ == "__main__":
    warnings.warn("python -m prorl_mq.acl is now python -m prorl_mq.store.server.acl", DeprecationWarning, stacklevel=1)
    main()
