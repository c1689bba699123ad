"""Old name of `prorl_mq.schema.lifecycle`, a program; it goes with the next release."""

import warnings

from prorl_mq.schema.lifecycle import mermaid

if __name__ == "__main__":
    why = "python -m prorl_mq.lifecycle is now python -m prorl_mq.schema.lifecycle"
    warnings.warn(why, DeprecationWarning, stacklevel=1)
    print(mermaid())
