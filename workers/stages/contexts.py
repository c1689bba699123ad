"""The contexts that handlers get in INIT, RUN and EVAL, as `workers.handler` promises them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from prorl_mq.schema.faults import Cause
from prorl_mq.schema.trajectory import Trajectory
from sandbox.errors import SandboxUnavailable
from sandbox.protocol import Mount, Sandbox, SandboxLimits, SandboxProvider, SandboxSpec
from workers import metrics
from workers.egress import opening
from workers.handler import JobView, NoModels, OtherModel
from workers.inference.protocol import Completion, Policy
from workers.inference.run_clock import RunClock
from workers.node.sweeping import EVAL_PURPOSE, RUN_PURPOSE, Attempt
from workers.stages.job_log import JobLog
from workers.stages.work import Work


class ForkUnread(Exception):
    """A task family whose rollouts do not continue was given turns to continue from."""

    retryable = False
    cause = Cause.WORKER


MakePolicy = Callable[[Work, RunClock], Policy]


class Models(Protocol):
    """The models of pools, as RUN and EVAL ask them for a job."""

    async def model(self, work: Work, pool: str, clock: RunClock, *, trained: bool) -> OtherModel: ...

    async def ask(
        self, work: Work, pool: str, question: str, *, max_tokens: int, temperature: float, seed: int | None = None
    ) -> str: ...


class _Base:
    def __init__(self, work: Work, provider: SandboxProvider | None, purpose: str) -> None:
        self._work = work
        self._provider = provider
        self._purpose = purpose
        self._view: JobView | None = None
        self.sandboxes: list[Sandbox] = []

    @property
    def job(self) -> JobView:
        """Made when it is asked for: many handlers never look."""
        self._view = self._view or self._work.view()
        return self._view

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
        if self._provider is None:
            raise SandboxUnavailable(
                f"{self._work.spec.data_source} needs a sandbox and this worker has none: start it with --sandbox KIND"
            )
        await self._work.hold()
        hosts = self._work.spec.egress if self._purpose == RUN_PURPOSE else ()
        if hosts:
            opening.allowed(hosts)
            door, environment = True, {**opening.ENVIRONMENT, **environment}
        attempt = Attempt(self._work.held.ref, self._work.held.token, self._purpose)
        spec = SandboxSpec(
            owner=attempt.name, image=image, writable=writable, empty=empty, mounts=mounts, door=door,
            environment=environment, limits=limits or SandboxLimits(), evaluates=self._purpose == EVAL_PURPOSE,
        )  # fmt: skip
        with metrics.sandbox_start_seconds.time():
            box = await self._provider.create(spec)
        self.sandboxes.append(box)
        if hosts:
            await opening.enter(box)
        return box

    async def close(self) -> None:
        """Destroys every sandbox that was made here."""
        while self.sandboxes:
            await self.sandboxes.pop().close()


class InitContext(_Base):
    """Implements `workers.handler.Init`."""

    def __init__(self, work: Work, provider: SandboxProvider | None) -> None:
        super().__init__(work, provider, RUN_PURPOSE)


class RunContext:
    """Implements `workers.handler.Run`."""

    def __init__(
        self,
        work: Work,
        carry: Any,
        sandbox: Sandbox | None,
        policy: MakePolicy,
        clock: RunClock,
        log: JobLog | None = None,
        models: Models | None = None,
    ) -> None:
        self._work = work
        self._models = models
        self._make_policy = policy
        self._view: JobView | None = None
        self._policy: _Heard | None = None
        self.carry = carry
        self.sandbox = sandbox
        self.clock = clock
        self.log = log

    @property
    def deadline(self) -> float:
        return self.clock.deadline

    @property
    def job(self) -> JobView:
        self._view = self._view or self._work.view()
        return self._view

    @property
    def policy(self) -> Policy:
        """Made when it is asked for: it takes a backend at its first call."""
        self._policy = self._policy or _Heard(self._make_policy(self._work, self.clock), self.log)
        return self._policy

    async def model(self, pool: str, *, trained: bool = False) -> OtherModel:
        if self._models is None:
            raise NoModels(f"no model of pool {pool!r} can be asked here: only the workers of a service have pools")
        return await self._models.model(self._work, pool, self.clock, trained=trained)

    @property
    def has_sampled(self) -> bool:
        """True once the policy has said something, or was seen to speak when its time was over; to any attempt."""
        if self.log is not None and (self.log.before or self.log.under_way):
            return True
        return self._policy is not None and self._policy.spoke


class _Heard:
    """A policy that remembers whether it was heard. That of a forked job speaks behind the turns of the other alone."""

    def __init__(self, policy: Policy, log: JobLog | None) -> None:
        self._policy = policy
        self._log = log
        self.spoke = False

    async def generate(self, prompt_ids: Sequence[int], **sampling: Any) -> Completion:
        if self._log is not None and self._log.inherited and not self._log.opened:
            raise ForkUnread(
                "its task family gives run_agent no log, or a tool that cannot resume: it cannot be forked"
            )
        try:
            completion = await self._policy.generate(prompt_ids, **sampling)
        except TimeoutError:  # its backend works, so the answer was longer than its time
            self.spoke = True
            raise
        self.spoke = True
        return completion


class EvalContext(_Base):
    """Implements `workers.handler.Eval`."""

    def __init__(
        self,
        work: Work,
        provider: SandboxProvider | None,
        *,
        sealed: Mapping[str, Any],
        export: Any,
        trajectory: Trajectory | None,
        truncated: bool,
        agent_error: str | None,
        repeated: bool,
        models: Models | None = None,
    ) -> None:
        super().__init__(work, provider, EVAL_PURPOSE)
        self._models = models
        self.sealed = sealed
        self.export = export
        self.trajectory = trajectory
        self.truncated = truncated
        self.agent_error = agent_error
        self.repeated = repeated

    async def ask(
        self, pool: str, question: str, *, max_tokens: int, temperature: float, seed: int | None = None
    ) -> str:
        if self._models is None:
            raise NoModels(
                f"no model of pool {pool!r} can be asked here: only the EVAL workers of a service have pools"
            )
        return await self._models.ask(
            self._work, pool, question, max_tokens=max_tokens, temperature=temperature, seed=seed
        )
