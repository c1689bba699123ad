"""Old name of `prorl_mq.schema.trajectory`; it goes with the next release."""

import warnings

from prorl_mq.schema.trajectory import *  # noqa: F403 - the old name has all of the new one

warnings.warn("prorl_mq.trajectory is now prorl_mq.schema.trajectory", DeprecationWarning, stacklevel=2)
