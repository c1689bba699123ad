"""The task family: an agent works in a task's container; the task's verifier scores what it left in a fresh one."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from prorl_mq.schema.trajectory import Trajectory
from sandbox.errors import SandboxError
from sandbox.protocol import Sandbox
from workers.agent.hermes import Message
from workers.agent.loading import policy_renderer
from workers.agent.loop import run_agent
from workers.agent.tools import offered, select
from workers.external.harness import harness, mount_of
from workers.external.interception import Interceptable, Interceptor
from workers.external.running import run_external
from workers.handler import Eval, Init, Prepared, Ran, Run, SandboxLost, Schema, Score
from workers.handlers.clocks import EvalClock
from workers.handlers.harbor import artefact, place, verifying
from workers.handlers.harbor.images import REGISTRY, image_of
from workers.handlers.harbor.row import OPEN, REQUIRED, SEALED, HiddenTests, TaskRow, hidden_of, row_of

TOOLS = ("execute_bash", "str_replace_editor", "finish")
SYSTEM = (
    "You solve a task in a Linux container, in the directory {workdir}. {network} Do what the task says, "
    "check your work, then call finish. Only files count in the end: what runs is not kept."
)
OFFLINE = "There is no network."
ONLINE = "Of the network you reach {hosts}, over https and through the proxy that HTTPS_PROXY names."


class Harbor(Interceptable):
    """Tasks in Harbor's format, which Terminal-Bench 2 has, as `python -m workers.handlers.harbor rows` writes them."""

    data_sources: Sequence[str] = ("harbor",)
    schema = Schema(required=REQUIRED, optional=OPEN, sealed=SEALED, eval_ms=verifying.eval_ms(HiddenTests().timeout_s))
    needs_sandbox = True
    needs_tools = True

    def images(self, payload: Mapping[str, Any]) -> list[str]:
        """The agent's image, if a registry has it. A separate verifier's is sealed."""
        name = row_of(payload).image
        found = [image_of(name)] if name.startswith(REGISTRY) else []
        return [each for each in found if "://" in each]

    async def init(self, context: Init) -> Prepared:
        row = row_of(context.job.payload)
        mounts = [await asyncio.to_thread(mount_of, row.agent)] if row.agent else []
        sandbox = await context.sandbox(
            await asyncio.to_thread(image_of, row.image),
            writable=row.writable,
            empty=row.empty,
            mounts=mounts,
            door=bool(mounts),
            limits=place.limits(row.memory_mb, row.storage_mb),
        )
        await place.furnish(sandbox, row)
        await artefact.note(sandbox, row)
        await sandbox.bash(place.prelude(row.environment, row.workdir))  # here, since RUN may begin more than once
        return Prepared(sandbox=sandbox.handle)

    async def run(self, context: Run) -> Ran:
        row = row_of(context.job.payload)
        sandbox = context.sandbox
        assert sandbox is not None  # INIT made it
        if row.agent_timeout_s is not None and not (context.log and context.log.before):  # else it is charged already
            context.clock.charge(max(0.0, context.clock.left_s - row.agent_timeout_s))
        trajectory, agent_error = await self.act(context, row, sandbox)
        try:
            await place.gather(sandbox, row.collect, row)
            export = await artefact.collect(sandbox, row)
        except (SandboxError, OSError, UnicodeError) as error:
            raise SandboxLost(f"what the agent made cannot be read: {error}", trajectory) from error
        return Ran(trajectory=trajectory, export=export, agent_error=agent_error)

    async def act(self, context: Run, row: TaskRow, sandbox: Sandbox) -> tuple[Trajectory | None, str | None]:
        """The agent at work: its trajectory, and how it broke the protocol."""
        if row.agent is None:
            return await _by_loop(context, row, sandbox)
        return await _by_harness(context, row, row.agent, sandbox, self.interceptor(context))

    async def eval(self, context: Eval) -> Score:
        row, hidden = row_of(context.job.payload), hidden_of(context.sealed)
        export = context.export or {}
        if "archive" not in export:
            size = export.get("too_large", 0) >> 20
            return Score(
                reward=0.0, note=f"the agent's files take {size} MiB; {artefact.PACKED_BYTES >> 20} are carried"
            )
        return await verifying.verify(context, row, hidden, export["archive"], EvalClock.of(context).left_s)


async def _by_loop(context: Run, row: TaskRow, sandbox: Sandbox) -> tuple[Trajectory | None, str | None]:
    """Our own loop: tools by the chat template."""
    result = await run_agent(
        policy=context.policy,
        renderer=await policy_renderer(),
        messages=[
            Message(role="system", content=row.system or told(row, context.job.egress)),
            Message(role="user", content=row.instruction),
        ],
        tools=select(offered(TOOLS, row.tools, context.job.tools)),
        sandbox=sandbox,
        sampling=context.job.sampling,
        sample=_sample(context),
        deadline=context.clock,
        log=context.log,
    )
    return result.trajectory, result.agent_error


async def _by_harness(
    context: Run, row: TaskRow, agent: str, sandbox: Sandbox, interceptor: Interceptor | None
) -> tuple[Trajectory | None, str | None]:
    """An external agent, in the sandbox, with the container's variables."""
    found = await asyncio.to_thread(harness, agent)
    entered = [*place.in_container(row.environment, row.workdir, 'exec "$@"'), "sh", *found.argv]
    result = await run_external(
        harness=replace(found, argv=entered),
        task=row.instruction,
        workdir=row.workdir,
        policy=context.policy,
        renderer=await policy_renderer(),
        sandbox=sandbox,
        sampling=context.job.sampling,
        sample=_sample(context),
        deadline=context.clock,
        interceptor=interceptor,
        others=await row.others(context),
    )
    return result.trajectory, None


def told(row: TaskRow, egress: Sequence[str]) -> str:
    """The system message."""
    network = ONLINE.format(hosts=", ".join(egress)) if egress else OFFLINE
    return SYSTEM.format(workdir=row.workdir, network=network)


def _sample(context: Run) -> str:
    return f"{context.job.task_id}:{context.job.index}"
