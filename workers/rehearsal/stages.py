"""Takes tasks through a handler's three stages in this process, as the workers do, with real sandboxes."""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from prorl_mq.schema.codec import decode_any, encode
from prorl_mq.schema.messages import Limits, Sampling, Task
from prorl_mq.schema.task_schema import limits_for, split
from prorl_mq.schema.trajectory import Trajectory
from sandbox.errors import SandboxUnavailable
from sandbox.protocol import Mount, Sandbox, SandboxLimits, SandboxProvider, SandboxSpec
from workers.agent.loading import load_renderer
from workers.egress import opening
from workers.handler import Handler, JobView, NodeCrowded, NoModels, OtherModel, Ran, Score, TurnLog, with_egress
from workers.inference.protocol import Policy
from workers.inference.run_clock import RunClock
from workers.rehearsal.policy import ScriptedPolicy, tokenizer

ROOMY = Sampling(max_tokens_per_turn=1 << 18, max_tokens=1 << 20, max_context_tokens=1 << 20)  # a token is a byte
RUN_S = 120.0


class Context:
    """Content of INIT's and EVAL's contexts, as plain values."""

    def __init__(self, provider: SandboxProvider | None, job: JobView, hosts: Sequence[str] = ()) -> None:
        self.job = job
        self._hosts = hosts
        self.sealed: Mapping[str, Any] = {}
        self.export: Any = None
        self.trajectory: Trajectory | None = None
        self.truncated = False
        self.agent_error: str | None = None
        self.repeated = False
        self._provider = provider
        self._made: list[Sandbox] = []

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
            raise SandboxUnavailable(f"{self.job.data_source} needs a sandbox, and there is no provider here")
        if self._hosts:
            opening.allowed(self._hosts)
            door, environment = True, {**opening.ENVIRONMENT, **environment}
        spec = SandboxSpec(
            owner="rehearsal", image=image, writable=writable, empty=empty, mounts=mounts, door=door,
            environment=environment, limits=limits or SandboxLimits(),
        )  # fmt: skip
        self._made.append(await self._provider.create(spec))
        if self._hosts:
            await opening.enter(self._made[-1])
        return self._made[-1]

    async def ask(self, pool: str, *_: object, **__: object) -> str:
        raise NoModels(f"no model of pool {pool!r} can be asked here: only a service's EVAL workers have pools")

    async def close(self) -> None:
        while self._made:
            await self._made.pop().close()


class RehearsalRun:
    """RUN's, where `sandbox` is the one that INIT made."""

    def __init__(
        self, job: JobView, carry: Any, sandbox: Sandbox | None, policy: Policy, run_s: float, log: TurnLog | None
    ) -> None:
        self.job, self.carry, self.sandbox, self.policy, self.log = job, carry, sandbox, policy, log
        self.clock = RunClock(run_s)

    @property
    def deadline(self) -> float:
        return self.clock.deadline

    async def model(self, pool: str, *, trained: bool = False) -> OtherModel:
        del trained
        raise NoModels(f"no model of pool {pool!r} can be asked here: only a service's workers have pools")


class Rehearsal:
    """One place to rehearse in. Get it from `rehearsing`."""

    def __init__(self, provider: SandboxProvider | None, model: Path) -> None:
        self._provider, self.model = provider, model

    async def rollout(
        self, handler: Handler, task: Task, texts: Sequence[str], *, run_s: float = RUN_S
    ) -> tuple[Ran, Score]:
        """Result of RUN for a policy that says these texts, and the score."""
        ran = await self.run(handler, task, texts, run_s=run_s)
        return ran, await self.score(handler, task, ran)

    async def run(
        self,
        handler: Handler,
        task: Task,
        texts: Sequence[str],
        *,
        run_s: float = RUN_S,
        log: TurnLog | None = None,
    ) -> Ran:
        """INIT and RUN of a task, with a policy that says these texts."""
        policy = ScriptedPolicy(await load_renderer(self.model), texts)
        return await self.acted(handler, _job(handler, task), policy, run_s=run_s, log=log)

    async def acted(
        self, handler: Handler, job: JobView, policy: Policy, *, run_s: float, log: TurnLog | None = None
    ) -> Ran:
        """INIT and RUN of a job with any policy. What travels between stages is encoded, as it will be."""
        init = Context(self._provider, job, job.egress)
        try:
            prepared = await handler.init(init)
            carry = decode_any(encode(prepared.carry))
            box = await self._provider.attach(prepared.sandbox) if prepared.sandbox and self._provider else None
            async with opening.way_out(box, job.job_id, job.egress) as ledger:
                return with_egress(await handler.run(RehearsalRun(job, carry, box, policy, run_s, log)), ledger.lines())
        finally:
            await init.close()

    async def score(self, handler: Handler, task: Task, ran: Ran) -> Score:
        """EVAL, in a fresh sandbox; as in the service once more where the node had no time for it."""
        return await self.scored(handler, _job(handler, task), split(handler.schema, task)[1], ran)

    async def scored(self, handler: Handler, job: JobView, sealed: Mapping[str, Any], ran: Ran) -> Score:
        """EVAL of a job."""
        try:
            return await self._score(handler, job, sealed, ran, repeated=False)
        except NodeCrowded:
            return await self._score(handler, job, sealed, ran, repeated=True)

    async def _score(
        self, handler: Handler, job: JobView, sealed: Mapping[str, Any], ran: Ran, *, repeated: bool
    ) -> Score:
        context = Context(self._provider, job)
        context.repeated = repeated
        context.sealed = sealed
        context.export, context.trajectory = decode_any(encode(ran.export)), ran.trajectory
        context.truncated = ran.trajectory is not None and ran.trajectory.truncated_by is not None
        context.agent_error = ran.agent_error
        try:
            return await handler.eval(context)
        finally:
            await context.close()


@asynccontextmanager
async def rehearsing(provider: SandboxProvider | None, model: Path | None = None) -> AsyncIterator[Rehearsal]:
    """With a vocabulary that needs no file of a model, or that of a `model`. Handlers find it as they find the
    policy's.
    """
    before = os.environ.get("PRORL_TOKENIZER")
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as name:
        if model is None:
            await asyncio.to_thread(tokenizer().save_pretrained, name)
        os.environ["PRORL_TOKENIZER"] = str(model or name)
        try:
            yield Rehearsal(provider, model or Path(name))
        finally:
            os.environ.pop("PRORL_TOKENIZER")
            if before is not None:
                os.environ["PRORL_TOKENIZER"] = before


def _job(handler: Handler, task: Task) -> JobView:
    return JobView(
        job_id=task.task_id,
        task_id=task.task_id,
        data_source=task.data_source,
        index=0,
        attempt=0,
        payload=split(handler.schema, task)[0],
        sampling=ROOMY,
        limits=limits_for(handler.schema, Limits()),
        egress=task.egress,
    )


def task_of(handler: Handler, payload: Mapping[str, Any], task_id: str = "rehearsed") -> Task:
    """A task of a handler's first data source."""
    return msgspec.convert({"task_id": task_id, "data_source": handler.data_sources[0], "payload": dict(payload)}, Task)
