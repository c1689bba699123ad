"""The store of one namespace: every verb, each beside its script by name, and the reads of `core`."""

from prorl_mq.store.core import BATCH, batched
from prorl_mq.store.verbs.duties import DutyVerbs
from prorl_mq.store.verbs.forks import ForkVerbs
from prorl_mq.store.verbs.groups import ADMIT, BATCHES_CAP, GroupVerbs
from prorl_mq.store.verbs.jobs import PREFERENCE_BOUND, TRIAL_MS, JobVerbs, renewal
from prorl_mq.store.verbs.moves import MoveVerbs
from prorl_mq.store.verbs.pauses import PauseVerbs
from prorl_mq.store.verbs.pools import HISTORY, PoolVerbs

__all__ = ["ADMIT", "BATCH", "BATCHES_CAP", "HISTORY", "PREFERENCE_BOUND", "TRIAL_MS", "Store", "batched", "renewal"]


class Store(JobVerbs, GroupVerbs, PoolVerbs, PauseVerbs, ForkVerbs, MoveVerbs, DutyVerbs):
    """The verbs of one namespace, spoken by one process."""
