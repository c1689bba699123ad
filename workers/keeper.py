"""Old name of `workers.node.keeper`, a program; it goes with the next release."""

import warnings

from workers.node.keeper import main

if __name__ == "__main__":
    warnings.warn("python -m workers.keeper is now python -m workers.node.keeper", DeprecationWarning, stacklevel=1)
    main()
