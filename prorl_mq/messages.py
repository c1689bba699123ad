"""Old name of `prorl_mq.schema.messages`; it goes with the next release."""

import warnings

from prorl_mq.schema.messages import *  # noqa: F403 - the old name has all of the new one

warnings.warn("prorl_mq.messages is now prorl_mq.schema.messages", DeprecationWarning, stacklevel=2)
