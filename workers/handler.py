"""The protocol of a task family: what a handler does in INIT, RUN and EVAL.

A handler is found by entry point (group `prorl_mq.handlers`); the entry point names a class or factory that is called
without arguments, once per worker process. Its methods raise plain Python exceptions: an exception in INIT or RUN is
an infrastructure failure and is retried, one raised from scoring code belongs in `Score(reward=0.0, note=...)` when
the policy's output caused it (`workers.handlers.blame` finds out). An exception class may carry the cause, as
`prorl_mq.schema.faults` names it, and `retryable`.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from prorl_mq.schema.faults import Cause
from prorl_mq.schema.messages import Limits, Sampling
from prorl_mq.schema.task_schema import Schema
from prorl_mq.schema.trajectory import HostReached, Trajectory
from sandbox.errors import SandboxError
from sandbox.protocol import Mount, Sandbox, SandboxHandle, SandboxLimits, SandboxProvider
from workers.inference.protocol import Policy
from workers.inference.run_clock import RunClock


class OtherModel(NamedTuple):
    """A model of another pool than the policy's. `renderer`, of `workers.agent.renderer`, makes its prompts."""

    policy: Policy
    renderer: Any
    trained: bool = False


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """A handler's view of its job."""

    job_id: str
    task_id: str
    data_source: str
    index: int  # place in the group; differs between samples of a task, so it can seed sampling
    attempt: int
    payload: Mapping[str, Any]  # the open part
    sampling: Sampling
    limits: Limits
    tools: Sequence[str] | None = None  # what the batch allows; None: what the task family offers
    egress: Sequence[str] = ()  # NAME:PORT that its sandbox may reach while RUN lasts
    forked: bool = False  # it begins with turns of another job

    @property
    def sample(self) -> str:
        """The name that its seeds are made of: of a forked job its id, for it must not sample as its parent did."""
        return self.job_id if self.forked else f"{self.task_id}:{self.index}"


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """Result of INIT, handed to RUN.

    `carry` is plain MessagePack data. It is kept in the job's hash, so keep it small; no limit is enforced.
    """

    carry: Any = None
    sandbox: SandboxHandle | None = None


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """Result of RUN, handed to EVAL. `agent_error` says how the policy broke the protocol, if it did."""

    trajectory: Trajectory | None
    export: Any = None  # what EVAL scores: an answer, a patch, files as bytes; plain MessagePack data
    agent_error: str | None = None


def with_egress(ran: Ran, reached: Sequence[HostReached]) -> Ran:
    """The same with the hosts that its sandbox reached in its record, where it has one."""
    if ran.trajectory is None or not reached:
        return ran
    return msgspec.structs.replace(ran, trajectory=msgspec.structs.replace(ran.trajectory, egress=reached))


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """Result of EVAL. `reward` is any finite float. The record of the sample takes all of it, so nothing sealed; the
    first 10,000 characters of a note, and no evidence above 256 KiB.
    """

    reward: float
    parts: Mapping[str, float] = {}
    note: str | None = None
    evidence: Mapping[str, Any] = {}  # what the reward rests on, for who doubts it: plain data, a few KiB


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """A solution whose reward is known. A node scores those of a family's `references` before it scores its jobs."""

    payload: Mapping[str, Any]  # the open part
    sealed: Mapping[str, Any] = {}
    export: Any
    reward: float


class SandboxLost(SandboxError):
    """A sandbox failed under the agent, or answered nonsense: the agent's doing or the node's.

    `trajectory` is what was sampled until then. Where `SandboxOverrun` is the reason, it is the agent's. Else nothing
    tells: the attempt is repeated once, and the same end again is the agent's.
    """

    def __init__(self, message: str, trajectory: Trajectory | None) -> None:
        super().__init__(message)
        self.trajectory = trajectory


@contextlib.contextmanager
def lost_with_egress(reached: Callable[[], Sequence[HostReached]]) -> Iterator[None]:
    """Puts them into the record of a rollout that loses its sandbox, too: an agent can bring that about."""
    try:
        yield
    except SandboxLost as lost:
        lost.trajectory = with_egress(Ran(trajectory=lost.trajectory), reached()).trajectory
        raise


class NodeCrowded(Exception):
    """A node had too little time for what EVAL runs. That is repeated once, and then the time that it took counts."""

    retryable = True
    cause = Cause.NODE


class NoModels(Exception):
    """EVAL is to ask a pool's model where no pools are known, as when samples are scored again."""

    retryable = False
    cause = Cause.NODE


class Init(Protocol):
    """Context that INIT gives a handler."""

    @property
    def job(self) -> JobView: ...
    async def sandbox(
        self,
        image: str | None = None,
        *,
        writable: Sequence[str] = (),
        empty: Sequence[str] = (),
        mounts: Sequence[Mount] = (),
        door: bool = False,
        environment: Mapping[str, str] = {},
        limits: SandboxLimits | None = None,
    ) -> Sandbox:
        """A new sandbox owned by this attempt; destroyed if INIT fails.

        `writable`: directories of the image that may be written to; `empty`: directories that begin empty. `door`: it
        may reach a socket of RUN's. `environment`: variables of all that runs in it, over those that every sandbox has.
        """
        ...


class LogTaken(Exception):
    """A task family has given one log to two rollouts, whose turns and calls would pass for each other's."""

    retryable = False
    forgets_log = True
    cause = Cause.WORKER


class TurnLog(Protocol):
    """The log of one job, as its attempt has it: of one rollout."""

    @property
    def before(self) -> Sequence[bytes]:
        """The records of the attempts before."""
        ...

    @property
    def inherited(self) -> int:
        """Turns at their beginning that another job has sampled, where this one was forked."""
        ...

    @property
    def under_way(self) -> bytes | None:
        """The part of a completion behind them that an attempt before had logged, as a record; None without one."""
        ...

    @property
    def rebuilds(self) -> bool:
        """True while the sandbox is a new one, in which the calls of the attempts before are still to be made again."""
        ...

    @property
    def volatile(self) -> Sequence[str]:
        """The family's `volatile`."""
        ...

    @property
    def restored(self) -> int:
        """The turn up to which its state was restored from a checkpoint: their calls are not made again; -1: none."""
        ...

    @property
    def acted_s(self) -> float:
        """Seconds that the calls of the newest turn have run in the sandbox, where attempts before have made some."""
        ...

    async def rebuilt(self) -> None:
        """Notes that they have been: from now on this sandbox is the rollout's. It is logged on return."""
        ...

    def rests(self, turn: int) -> None:
        """Says that nothing acts in the sandbox behind this turn until `acts`: its state may be saved meanwhile."""
        ...

    async def acts(self) -> None:
        """Returns once the sandbox may be acted in again."""
        ...

    async def border(self) -> None:
        """Returns where a new turn may begin. An attempt that is asked to end does so here: its sandbox is saved, all
        that it has logged is in Redis, and the task is cancelled.
        """
        ...

    def open(self) -> None:
        """Whoever reads and writes it says so. Raises `LogTaken` the second time."""
        ...

    async def append(self, record: bytes, *, wait: bool) -> None:
        """Adds a record. With `wait` it is logged on return, and all before it."""
        ...

    @property
    def leaves(self) -> bool:
        """True once its attempt was told to stop, so that a later one continues."""
        ...

    async def part(self, record: bytes, *, wait: bool = False) -> None:
        """Adds a part of a completion that is being sampled. With `wait` it is logged on return."""
        ...

    async def note(self, text: str) -> None:
        """Says something in the job's time line."""
        ...

    async def keep_file(self, data: bytes) -> str:
        """Puts into a file what is too large for the log. Its name; empty where none takes it."""
        ...

    async def kept_file(self, name: str) -> bytes | None: ...


class Run(Protocol):
    """Context that RUN gives a handler."""

    @property
    def job(self) -> JobView: ...
    @property
    def carry(self) -> Any: ...
    @property
    def sandbox(self) -> Sandbox | None: ...
    @property
    def policy(self) -> Policy: ...
    async def model(self, pool: str, *, trained: bool = False) -> OtherModel:
        """A model of another pool of the job's tenant. `trained`: what a third-party agent hears of it is trained, with
        log-probabilities as exact as the batch asks of the policy's. Raises `TemplateError` where the pool's tokenizer
        cannot be used, `NoModels`, and what makes the job fail for a pool of another tenant.
        """
        ...

    @property
    def log(self) -> TurnLog | None:
        """The log of its turns, for `run_agent`: with it the job continues where a worker that died has left it. The
        handler itself runs again from its beginning, in the same sandbox, or in a new one where that is lost.
        """
        ...

    @property
    def clock(self) -> RunClock:
        """RUN's budget; a handler that ends before it keeps its trajectory. It stands while a backend is waited for."""
        ...

    @property
    def deadline(self) -> float:
        """Event-loop time at which the budget ends as things are now; later, once a backend was waited for."""
        ...


class Eval(Protocol):
    """Context that EVAL gives a handler."""

    @property
    def job(self) -> JobView: ...
    @property
    def sealed(self) -> Mapping[str, Any]: ...
    @property
    def export(self) -> Any: ...
    @property
    def trajectory(self) -> Trajectory | None: ...
    @property
    def truncated(self) -> bool: ...
    @property
    def agent_error(self) -> str | None: ...
    @property
    def repeated(self) -> bool:
        """A node had no time for this job's EVAL (`NodeCrowded`): what is measured now counts."""
        ...

    async def ask(
        self, pool: str, question: str, *, max_tokens: int, temperature: float, seed: int | None = None
    ) -> str:
        """The answer of a model of any pool, such as a judge, to one question, without its thought. `pool` is that of
        the job's own tenant, or `TENANT:POOL`; its chat template is used. Raises `InferenceError`, `TemplateError`
        where the pool's tokenizer cannot be used, or `NoModels`.
        """
        ...

    async def sandbox(
        self,
        image: str | None = None,
        *,
        writable: Sequence[str] = (),
        empty: Sequence[str] = (),
        mounts: Sequence[Mount] = (),
        door: bool = False,
        environment: Mapping[str, str] = {},
        limits: SandboxLimits | None = None,
    ) -> Sandbox:
        """A fresh sandbox, destroyed when EVAL ends."""
        ...


class Handler(Protocol):
    """A task family."""

    data_sources: Sequence[str]  # names of `Task.data_source` that this handler runs
    schema: Schema
    needs_sandbox: bool  # `needs_tools = True` beside it: a worker whose model takes no tools refuses the family
    # `row_steps = (("name", step),)` beside it: functions of the open and the sealed part that raise what is wrong with
    # a row, without a sandbox; `prorl-mq task check --rows` runs them.
    # `asks = ("judge",)` beside it: pools whose models EVAL asks; a worker that cannot render for them does not start
    # `volatile = (r"seed \d+",)` beside it: regular expressions of what answers of its calls say differently each time

    async def init(self, context: Init) -> Prepared: ...
    async def run(self, context: Run) -> Ran: ...
    async def eval(self, context: Eval) -> Score: ...


__all__ = [
    "Eval", "Handler", "Init", "JobView", "Prepared", "Ran", "Run", "SandboxProvider", "Schema", "Score",
]  # fmt: skip
