"""Tasks as reported by squeue."""

import math
import re
from typing import Final, NamedTuple

import msgspec

FORMAT: Final = "%i|%j|%T|%N|%M|%L|%r"
WAITING: Final = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SUSPENDED", "REQUEUE_FED"})
# Reasons for which a task waits until somebody changes something: squeue's words of several releases.
HELD: Final = re.compile(
    r"JobHeld|JobHoldMaxRequeue|requeued[ _]held|held[ _]state|JobLaunchFailure|NeverSatisfied|BadConstraints"
    r"|Partition(Time|Node)Limit|AssociationTimeLimit|Invalid(Account|QOS)|Max\w+PerJob",
    re.IGNORECASE,
)
WORKING: Final = frozenset({"RUNNING", "SIGNALING", "STAGE_OUT", "RESIZING"})
AHEAD_S: Final = 600.0  # a server's successor is asked for so long before its limit,
AHEAD: Final = 0.1  # or such a share of the limit if that is more, and half of it at most
ENDED_WELL: Final = frozenset({"COMPLETED"})
TAKEN: Final = frozenset({"PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "TIMEOUT", "DEADLINE"})  # no fault of the task


ENDS: Final = {
    "TIMEOUT": "it reached its time limit",
    "NODE_FAIL": "its node failed",
    "PREEMPTED": "it was pre-empted",
    "OUT_OF_MEMORY": "it used more memory than it requested",
    "FAILED": "it failed",
    "BOOT_FAIL": "its node did not start",
    "DEADLINE": "it reached its deadline",
}


class SlurmTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task of an array (`17_3`), or a job without one (`18`). `job` is the job's name in the spec."""

    id: str
    deployment: str
    job: str
    state: str
    node: str
    run_s: int  # since it started to run
    left: str  # until its limit, as Slurm writes it
    reason: str

    @property
    def nodes(self) -> tuple[str, ...]:
        """Those that it runs on, or ran on."""
        return hosts(self.node)

    @property
    def waiting(self) -> bool:
        return self.state in WAITING

    @property
    def held(self) -> bool:
        """It waits, and will not start by itself."""
        return self.waiting and (self.state == "REQUEUE_HOLD" or HELD.search(self.reason) is not None)

    @property
    def coming(self) -> bool:
        """It waits, and will start."""
        return self.waiting and not self.held

    @property
    def working(self) -> bool:
        return self.state in WORKING

    @property
    def ending(self) -> bool:
        return self.state == "COMPLETING"

    @property
    def alive(self) -> bool:
        return self.waiting or self.working or self.ending

    @property
    def failed(self) -> bool:
        """It ended otherwise than by draining or by being cancelled."""
        return not self.alive and self.state not in {*ENDED_WELL, "CANCELLED"}

    @property
    def broken(self) -> bool:
        """It failed by itself, so that the next one of its kind probably fails, too."""
        return self.failed and self.state not in TAKEN

    @property
    def end(self) -> str:
        """A sentence about how it ended."""
        return ENDS.get(self.state, f"it ended as {self.state}")


def read_tasks(text: str) -> list[SlurmTask]:
    """Lines of squeue in `FORMAT`. What an array's tasks are that do not wait any more, `-r` lists one by one."""
    found = []
    for line in text.splitlines():
        parts = line.split("|", 6)
        if len(parts) == 7:
            id_, name, state, node, run, left, reason = parts
            deployment, _, rest = name.partition(".")
            job = rest.partition(".")[0]  # behind it stands which directory is the deployment's
            found.append(
                SlurmTask(
                    id=id_,
                    deployment=deployment,
                    job=job,
                    state=state,
                    node=node,
                    run_s=clock_s(run) or 0,
                    left=left,
                    reason="" if reason == "None" else reason,
                )
            )
    return found


def hosts(text: str) -> tuple[str, ...]:
    """Names of nodes from Slurm's short form.

    >>> hosts("n1"), hosts("gpu[08-10,12],m1"), hosts("r[1-2]n[1-2]"), hosts("")
    (('n1',), ('gpu08', 'gpu09', 'gpu10', 'gpu12', 'm1'), ('r1n1', 'r1n2', 'r2n1', 'r2n2'), ())
    """
    return tuple(name for word in re.findall(r"(?:\[[^\]]*\]|[^,\[])+", text) for name in _expanded(word))


def _expanded(word: str) -> list[str]:
    head, bracket, rest = word.partition("[")
    if not bracket:
        return [word]
    ranges, _, tail = rest.partition("]")
    numbers = []
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        numbers += [f"{number:0{len(first)}}" for number in range(int(first), int(last or first) + 1)]
    return [f"{head}{number}{end}" for number in numbers for end in _expanded(tail)]


def clock_s(text: str) -> int | None:
    """A time as squeue writes it; None for UNLIMITED and the like.

    >>> clock_s("1-02:03:04"), clock_s("9:30"), clock_s("UNLIMITED"), clock_s("0:00")
    (93784, 570, None, 0)
    """
    days, _, clock = text.strip().rpartition("-")
    parts = clock.split(":")
    if len(parts) < 2 or not all(part.isdecimal() for part in parts):
        return None
    total = 0
    for part in parts:
        total = 60 * total + int(part)
    return int(days or 0) * 86400 + total


def limit_s(text: str) -> float:
    """A time limit as sbatch reads it; infinite where there is none.

    >>> limit_s("01:30:00"), limit_s("10:00"), limit_s("90"), limit_s("1-12:00"), limit_s("2-6")
    (5400.0, 600.0, 5400.0, 129600.0, 194400.0)
    >>> limit_s("UNLIMITED"), limit_s("0")
    (inf, inf)
    """
    days, dash, rest = text.rpartition("-")
    if not rest[0].isdecimal():
        return math.inf
    parts = [int(part) for part in rest.split(":")]
    if not dash and len(parts) < 3:  # minutes come first
        parts = [0, *parts]
    hours, minutes, seconds = [*parts, 0, 0][:3]
    return float(int(days or 0) * 86400 + hours * 3600 + minutes * 60 + seconds) or math.inf


def ahead_s(whole_s: float) -> float:
    """The time before a server's limit, of `whole_s` in all, at which its successor is asked for.

    >>> ahead_s(4 * 3600), ahead_s(48 * 3600), ahead_s(600)
    (1440.0, 17280.0, 300.0)
    """
    return min(whole_s / 2, max(AHEAD_S, whole_s * AHEAD))


NAME: Final = re.compile(r"(?P<stage>[a-z]+)-(?P<task>\d+(_\d+)?)\.(?P<restarts>\d+)@(?P<node>.+)-(?P<pid>\d+)")


class Member(NamedTuple):
    """A run of a task; one that runs again after a restart counts one higher."""

    task: str
    restarts: int


def task_of(worker: str) -> Member | None:
    """None for a worker that Slurm did not start.

    >>> task_of("run-17_3.1@n2-4711"), task_of("run-laptop-4711")
    (Member(task='17_3', restarts=1), None)
    """
    match = NAME.fullmatch(worker)
    return Member(match["task"], int(match["restarts"])) if match else None
