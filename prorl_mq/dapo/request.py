"""Old name of `prorl_mq.schema.dapo`; it goes with the next release."""

import warnings

from prorl_mq.schema.dapo import *  # noqa: F403 - the old name has all of the new one

warnings.warn("prorl_mq.dapo.request is now prorl_mq.schema.dapo", DeprecationWarning, stacklevel=2)
