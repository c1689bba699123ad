"""The store of one namespace: every verb, each beside its script by name, and the reads of `core`."""

from prorl_mq.store.core import BATCH, batched
from prorl_mq.store.duty_verbs import DutyVerbs
from prorl_mq.store.group_verbs import ADMIT, BATCHES_CAP, GroupVerbs
from prorl_mq.store.job_verbs import PREFERENCE_BOUND, TRIAL_MS, JobVerbs, renewal
from prorl_mq.store.pool_verbs import HISTORY, PoolVerbs

__all__ = ["ADMIT", "BATCH", "BATCHES_CAP", "HISTORY", "PREFERENCE_BOUND", "TRIAL_MS", "Store", "batched", "renewal"]


class Store(JobVerbs, GroupVerbs, PoolVerbs, DutyVerbs):
    """The verbs of one namespace, spoken by one process."""
