"""Shares of Redis's memory: new work loses its room first, what was accepted never does. Pure."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from prorl_mq.schema.ids import RunRef
from prorl_mq.schema.settings import RunSettings

INTAKE_SHARE: Final = 0.70  # of maxmemory: above it no batch is accepted
ADMIT_SHARE: Final = 0.85  # with what the jobs in flight may still store: above it no group begins
LOG_SHARE: Final = 0.70  # of maxmemory, or of the host: above it rollouts continue without a log, and none is forked
ASIDE_SHARE: Final = 0.50  # above it what is put aside in EVAL counts against what may wait there
RUN_SHARE: Final = 0.25  # that one run's unacknowledged results may hold, where its settings do not say
UNLIMITED_BYTES: Final = 4 << 30  # of one run, where Redis has no limit
GROUP_BYTES: Final = 2 << 10  # that a group takes beside its task
FIRST_BYTES: Final = 64 << 10  # of one sample's result, before a run has its first


class Memory(NamedTuple):
    """Redis's memory in bytes; `limit` is 0 where there is none, `host` where the server does not say what its has."""

    used: int
    limit: int
    host: int = 0

    @property
    def share(self) -> float:
        """The used share, 0.0 without a limit."""
        return self.used / self.limit if self.limit else 0.0


def unacked_limit(settings: RunSettings, memory: Memory) -> int:
    """Bytes of unacknowledged results above which a run begins no group."""
    if settings.max_unacked_bytes is not None:
        return settings.max_unacked_bytes
    return int(RUN_SHARE * memory.limit) if memory.limit else UNLIMITED_BYTES


def expected(jobs: Mapping[RunRef, int], sizes: Mapping[RunRef, int]) -> int:
    """Bytes that the jobs in flight may still store, by the sizes of their runs' latest results."""
    return sum(count * sizes.get(run, FIRST_BYTES) for run, count in jobs.items())


def room(memory: Memory, coming: int) -> int | None:
    """Bytes that new groups may come to store; None: Redis has no limit."""
    return int(ADMIT_SHARE * memory.limit) - memory.used - coming if memory.limit else None


def log_room(memory: Memory) -> int | None:
    """Bytes that the turns of running jobs may come to take; None: nothing is known that bounds them."""
    limit = memory.limit or memory.host
    return int(LOG_SHARE * limit) - memory.used if limit else None


def why_no_room(memory: Memory, coming: int) -> str:
    """Says that a group waits for memory, and what helps."""
    return (
        f"Redis uses {memory.used >> 20} of {memory.limit >> 20} MiB and what runs may store {coming >> 20} MiB more; "
        f"no group begins above {ADMIT_SHARE:.0%}: acknowledge results, or give Redis more memory"
    )
