"""Old name of `prorl_mq.schema.task_schema`; it goes with the next release."""

import warnings

from prorl_mq.schema.task_schema import *  # noqa: F403 - the old name has all of the new one

warnings.warn("prorl_mq.task_schema is now prorl_mq.schema.task_schema", DeprecationWarning, stacklevel=2)
