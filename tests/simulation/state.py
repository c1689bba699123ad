"""What the model knows: jobs with their leases, groups, pending entries, duties; and the parts that scripts share."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from tests.simulation.server import NAMES

EPOCH_MS: Final = 1 << 41  # of `call.lua`
Place = tuple[str, str]  # a stream and an entry of it


@dataclass(slots=True)
class Job:
    """One admitted sample."""

    state: str
    stage: str
    stream: str
    entry: str
    deadline: int
    token: str = ""
    owner: str = ""
    until: int = 0
    lease: int | None = None  # in ms; None: no lease
    delayed: int | None = None  # until when
    ending: str = ""
    pause: int = 0  # the end of the pause that it is marked for, or in
    parked: int = 0  # when it was; 0: it is not
    logged: int = 0  # records in its log of turns
    committed: dict[str, str] = field(default_factory=dict)  # by token: the worker that has
    dies_ms: int | None = None


@dataclass(slots=True)
class Group:
    """One group from its submission to its acknowledgement."""

    next: int = 0
    wanted: int = 0
    open: int = 0
    withdrawn: str = ""  # why
    changes: int = 0  # its version
    followed: bool = True  # whether the model knows its version
    parked: bool = False
    waits: bool = False  # in its run's backlog
    reserved: bool = False  # in a reservoir
    record: bool = False  # it is published


class Call(NamedTuple):
    """One script call, unpacked, at Redis's time."""

    script: str
    keys: Sequence[str]
    about: Mapping[str, Any]
    wall_us: int
    offset_ms: int
    floor_ms: int
    reply: Any

    @property
    def now_ms(self) -> int:
        """The service's time."""
        return max(self.clock_ms, self.floor_ms)

    @property
    def clock_ms(self) -> int:
        """Redis's time with its correction, which may have gone back."""
        return self.wall_us // 1000 + self.offset_ms

    @property
    def wall_ms(self) -> int:
        """Redis's time, by which keys die."""
        return self.wall_us // 1000


class State:
    """One namespace as the scripts should have left it."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.groups: dict[str, Group] = {}
        self.pending: dict[Place, str] = {}  # with the worker that has read it
        self.due: set[str] = set()
        self.duties: dict[str, tuple[str, str, int]] = {}  # key → holder, its answer to others, until when
        self.admitted: dict[str, int] = {}  # group → how many samples it has had in all
        self.granted: set[Place] = set()  # what may be granted once: a message's answer, a result's end, a batch's
        self.forked: dict[str, str] = {}  # batch of a fork → the digest of its order
        self.drawn: dict[str, int] = {}  # batch → how many groups it has drawn
        self.paused_runs: dict[str, float] = {}  # each with the end of its pause, in ms
        self.alive: dict[str, int] = {}  # worker → until when it lives without another beat
        self.server = NAMES[0].decode()
        self.epoch = 0
        self.offset_ms = 0
        self.floor_ms = 0
        self._opened = ""  # the server that the epoch is of
        self._tokens = 0  # given in this epoch
        self._last: dict[str, tuple[int, int]] = {}

    @property
    def epoch_is_open(self) -> bool:
        """Whether an epoch was opened on the server as it is now."""
        return self._opened == self.server

    @property
    def epoch_text(self) -> str:
        return f"{self.epoch}-{self.server}"

    def read(self, stream: str, entries: Sequence[str], worker: str) -> None:
        """Entries that a worker was given."""
        self.pending |= {(stream, entry): worker for entry in entries}

    def acknowledged(self, stream: str, entries: Sequence[str]) -> None:
        for entry in entries:
            self.pending.pop((stream, entry), None)

    def _added(self, stream: str, now_ms: int) -> str:
        """The id of an entry that is added now."""
        now_ms += self.epoch * EPOCH_MS
        ms, number = self._last.get(stream, (0, 0))
        self._last[stream] = (now_ms, 0) if now_ms > ms else (ms, number + 1)
        return "{}-{}".format(*self._last[stream])

    def _job(self, ref: str, wall_ms: int) -> Job | None:
        job = self.jobs.get(ref)
        return None if job is None or (job.dies_ms is not None and wall_ms > job.dies_ms) else job

    def _tokens_for(self, call: Call) -> Iterator[str]:
        """As many as the call has items, or says, once it needs one."""
        first = self._tokens + 1
        self._tokens += call.about.get("tokens", len(call.about["items"]))
        for number in range(first, self._tokens + 1):
            yield f"{self.epoch_text}.{number}"

    def _open_epoch(self, call: Call) -> list[Any]:
        seen, _, server = call.about["seen"].partition("-")
        number = int(seen or 0)
        if self._opened != self.server or (number >= self.epoch and server != self.server):
            self._opened, self.epoch, self._tokens = self.server, max(self.epoch, number) + 1, 0
            self.floor_ms = call.now_ms
        return [self.epoch_text, 0, "open"]

    def _commit(self, call: Call, ref: str, token: str, entry: str, stream: str) -> tuple[Job | None, str]:
        """The fence: the job if the caller holds its current lease, else the refusal."""
        job = self._job(ref, call.wall_ms)
        if job is None:
            return None, "gone"
        worker = call.about["worker"]
        if token in job.committed:
            return None, "already" if job.committed[token] == worker else "stale"
        if job.token != token or job.owner not in {"", worker}:
            return None, "stale"
        to = call.about["rules"].get(job.state)
        if to is None:
            return None, job.state
        if (stream, entry) not in self.pending:
            return None, "stale"
        del self.pending[stream, entry]
        job.committed[token] = worker
        job.state, job.owner, job.lease = to, "", None
        return job, ""

    def _ended(self, ref: str, job: Job, due: str, now_ms: int) -> None:
        job.state, job.entry, job.owner, job.lease, job.delayed = "done", "", "", None, None
        job.logged = 0
        group = self.groups.setdefault(ref.rpartition(":")[0], Group())
        group.open -= 1
        group.changes += 1
        if group.open == 0:
            self.due.add(self._added(due, now_ms))
