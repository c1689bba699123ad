"""Old name of `prorl_mq.rules.filters`; it goes with the next release."""

import warnings

from prorl_mq.rules.filters import *  # noqa: F403 - the old name has all of the new one

warnings.warn("prorl_mq.dapo.filters is now prorl_mq.rules.filters", DeprecationWarning, stacklevel=2)
