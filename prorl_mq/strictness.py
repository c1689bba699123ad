"""Old name of `prorl_mq.schema.strict`; it goes with the next release."""

import warnings

from prorl_mq.schema.strict import *  # noqa: F403 - the old name has all of the new one

warnings.warn("prorl_mq.strictness is now prorl_mq.schema.strict", DeprecationWarning, stacklevel=2)
