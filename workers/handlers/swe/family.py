"""The task family: an agent works in a repository; hidden tests say whether its patch resolves the issue."""

import asyncio
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

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
from workers.handlers.swe import environment, evaluation, repository
from workers.handlers.swe.images import image_of
from workers.handlers.swe.rows import REFUSED, SweTask, hidden_of, task_of, whole
from workers.handlers.swe.spec import refuse_other_languages
from workers.handlers.swe.steps import STEPS

TOOLS = ("execute_bash", "str_replace_editor", "finish")
EVAL_MS = 4_800_000  # two runs of the tests of half an hour each, which is SWE-bench's limit, and a fifth for the rest
SYSTEM = (
    "You fix an issue in the repository {workdir}. Look at the code, reproduce the issue, change the source so that it "
    "is resolved, and check your change. Do not change tests: hidden ones will judge your work. Then call finish."
)
_ABOUT_THE_FIX = (
    "patch", "test_patch", "FAIL_TO_PASS", "PASS_TO_PASS", "hints_text", "log_parser", "eval_script",
    "expected_output_json", "execution_result_content", "parsed_commit_content", "modified_files", "relevant_files",
    "modified_entity_summaries", "num_non_test_files", "num_non_test_func_methods", "num_non_test_lines", "prompt",
    "instance_dict", "responses_create_params", "golden_patch",
)  # fmt: skip


class SoftwareEngineering(Interceptable):
    """Rows of SWE-bench, SWE-Gym, R2E-Gym and SWE-smith, with the columns that they are published with."""

    data_sources: Sequence[str] = ("swebench", "swe_gym", "r2e_gym", "swe_smith")
    schema = Schema(
        required=("problem_statement",),
        optional=[name for name in SweTask.__struct_fields__ if name != "problem_statement"],
        sealed=_ABOUT_THE_FIX,
        open_ended=True,
        eval_ms=EVAL_MS,
        refused=REFUSED,
    )
    needs_sandbox = True
    needs_tools = True
    row_steps = STEPS

    def images(self, payload: Mapping[str, Any]) -> list[str]:
        """The images that a row needs."""
        return [image_of(task_of(payload))]

    async def init(self, context: Init) -> Prepared:
        task = task_of(context.job.payload)
        refuse_other_languages(task)
        mounts = [await asyncio.to_thread(mount_of, task.agent)] if task.agent else []
        sandbox = await context.sandbox(
            image_of(task), writable=task.writable, mounts=mounts, door=bool(mounts), environment=environment.of_agent()
        )
        await repository.hide_tests(sandbox, task)
        base = await repository.prepare(sandbox, task)
        await environment.activate(sandbox)
        await sandbox.bash(f"cd {shlex.quote(task.workdir)}")  # here, since RUN may begin more than once
        return Prepared(carry={"base": base}, sandbox=sandbox.handle)

    async def run(self, context: Run) -> Ran:
        task = task_of(context.job.payload)
        sandbox = _sandbox(context)
        trajectory, agent_error = await self.act(context, task, sandbox)
        try:
            patch = await repository.export(sandbox, task, context.carry["base"])
        except (SandboxError, OSError, UnicodeError) as error:
            raise SandboxLost(f"the patch cannot be read: {type(error).__name__}: {error}", trajectory) from error
        return Ran(trajectory=trajectory, export={"patch": patch}, agent_error=agent_error)

    async def act(self, context: Run, task: SweTask, sandbox: Sandbox) -> tuple[Trajectory | None, str | None]:
        """The agent at work: its trajectory, and how it broke the protocol."""
        if task.agent is None:
            return await _by_loop(context, task, sandbox)
        return await _by_harness(context, task, task.agent, sandbox, self.interceptor(context))

    async def eval(self, context: Eval) -> Score:
        row = whole(context.job.payload, context.sealed)
        task = task_of(row)
        patch = (context.export or {}).get("patch")
        if not patch:
            return Score(reward=0.0, note="the patch is empty")

        async def make() -> Sandbox:
            return await context.sandbox(image_of(task), writable=task.writable)

        return await evaluation.evaluate(make, task, hidden_of(row), patch, EvalClock.of(context))


def _sandbox(context: Run) -> Sandbox:
    assert context.sandbox is not None  # INIT made it
    return context.sandbox


async def _by_loop(context: Run, task: SweTask, sandbox: Sandbox) -> tuple[Trajectory | None, str | None]:
    """Our own loop: tools by the chat template."""
    result = await run_agent(
        policy=context.policy,
        renderer=await policy_renderer(),
        messages=[
            Message(role="system", content=task.system or SYSTEM.format(workdir=task.workdir)),
            Message(role="user", content=task.problem_statement),
        ],
        tools=select(offered(TOOLS, task.tools, context.job.tools)),
        sandbox=sandbox,
        sampling=context.job.sampling,
        sample=context.job.sample,
        deadline=context.clock,
        log=context.log,
    )
    return result.trajectory, result.agent_error


async def _by_harness(
    context: Run, task: SweTask, agent: str, sandbox: Sandbox, interceptor: Interceptor | None
) -> tuple[Trajectory | None, str | None]:
    """An external agent, in the sandbox."""
    result = await run_external(
        harness=await asyncio.to_thread(harness, agent),
        task=task.problem_statement,
        workdir=task.workdir,
        policy=context.policy,
        renderer=await policy_renderer(),
        sandbox=sandbox,
        sampling=context.job.sampling,
        sample=context.job.sample,
        deadline=context.clock,
        interceptor=interceptor,
        others=await task.others(context),
    )
    return result.trajectory, None
