"""What one seed's history is like: sizes, times, the faults that it may have. Printed with every finding."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

HANDLER_KINDS: Final = ("raise", "hang", "deaf")
NETWORK_KINDS: Final = ("lost_request", "lost_reply", "late", "again", "hold_reads", "silent")
EVENT_KINDS: Final = (
    "kill_worker", "kill_api", "freeze_worker", "freeze_api", "restart", "role", "refused", "drain", "cancel_job",
    "cancel_group", "cancel_batch", "cancel_run", "foreign_key", "clock_step", "lost_tail", "hard_role", "pause_job",
    "pause_run", "fork_job",
)  # fmt: skip
STOPS: Final = frozenset({"kill_worker", "freeze_worker", "drain", "restart"})
DEFAULT: Final = frozenset({*HANDLER_KINDS, *NETWORK_KINDS, *EVENT_KINDS, "dapo", "refill"})
SHARES: Final = (0.0, 0.15, 0.3, 0.5)  # of the kinds that one history has
STORM: Final = (0.3, 0.6)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Derived from a seed, or written down by a test."""

    seed: int | str
    kinds: frozenset[str] = frozenset()
    groups: int = 5
    n: int = 4
    batches: int = 1
    slots: int = 2
    workers: int = 1  # of each stage
    apis: int = 1
    lease_ms: int = 1000
    grace_ms: int = 2000
    longest_s: float = 0.05  # of a handler's call
    faults_s: float = 0.0  # how long faults last
    permute: bool = True
    shuffle_all: bool = False
    max_deaths: int = 20
    total_ms: int = 600_000
    surplus: str = "cancel"
    wait_for_ttl: bool = False
    ack_at_once: bool = True
    reads_again: bool = True  # after a lost tail, by another process of the trainer
    cancels: int = 2

    @property
    def work_s(self) -> float:
        """How long its handlers may take at most, one after the other."""
        return 3 * self.jobs * self.longest_s / (self.slots * self.workers)

    def random(self, what: str) -> Random:
        """A generator of its own for each use, so that one fault less changes nothing else."""
        return Random(f"{self.seed}/{what}")

    @property
    def jobs(self) -> int:
        return self.batches * self.groups * self.n


def derive(seed: int | str, allowed: frozenset[str] = DEFAULT, shares: Sequence[float] = SHARES) -> Options:
    """A history of 4 to 30 jobs; each allowed kind of fault is in it or not (swarm)."""
    random = Random(f"{seed}/options")
    share = random.choice(shares)
    kinds = frozenset(kind for kind in allowed if Random(f"{seed}/options/{kind}").random() < share)
    lease_ms = random.choice((600, 1000, 2000))
    n = random.choice((1, 2, 4, 8))
    groups = max(1, random.choice((4, 8, 16, 30)) // n)
    faults_s = random.choice((0.5, 2.0, 5.0)) * lease_ms / 1000
    return Options(
        seed=seed,
        kinds=kinds,
        groups=groups,
        n=n,
        batches=random.choice((1, 1, 2)),
        slots=random.choice((1, 2, 4, 8)),
        workers=random.choice((1, 1, 2)),
        apis=2 if kinds & {"hold_reads", "freeze_api"} else random.choice((1, 1, 2)),
        lease_ms=lease_ms,
        grace_ms=random.choice((lease_ms // 2, 2 * lease_ms)),
        longest_s=_longest_s(random, lease_ms, stopped=bool(kinds & STOPS)),
        faults_s=faults_s if kinds & {*NETWORK_KINDS, *EVENT_KINDS} else 0.0,
        permute=random.random() < 0.8,
        shuffle_all=random.random() < 0.1,
        max_deaths=random.choice((2, 20)),
        total_ms=random.choice((600_000, 600_000, 3 * lease_ms)),
        surplus=random.choice(("cancel", "carry", "ordered")),
        wait_for_ttl=random.random() < 0.2,
        ack_at_once=random.random() < 0.7,
        cancels=random.choice((1, 3, 8)),
    )


def derive_storm(seed: int | str) -> Options:
    """A history with many kinds of faults, without those that only take time."""
    return derive(seed, DEFAULT - {"hang", "deaf", "foreign_key", "silent", "role", "hard_role"}, (0.4, 0.6))


def _longest_s(random: Random, lease_ms: int, *, stopped: bool) -> float:
    """Handlers that end before the first fault would see none."""
    leases = (0.1, 0.5, 1.0, 4.0) if stopped else (0.0, 0.0, 0.002, 0.05, 1.0)
    return random.choice(leases) * lease_ms / 1000


@dataclass
class Finding:
    """What a history did that it must not."""

    what: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.what}: {self.detail}" if self.detail else self.what
