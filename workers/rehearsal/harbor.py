"""Checks tasks in Harbor's format: the reference solution must earn 1, and doing nothing must earn 0.

`prorl-mq task check TASKS` starts it for a directory of tasks. Both go through INIT, RUN and EVAL as a policy does: in
a sandbox of their own, whose files are carried to the verifier's.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from prorl_mq.clock import monotonic
from prorl_mq.schema.messages import Limits
from prorl_mq.schema.trajectory import Trajectory
from sandbox.protocol import Sandbox
from workers.handler import Handler, Run
from workers.handlers.harbor import files, place
from workers.handlers.harbor.dataset import line, read_all
from workers.handlers.harbor.family import Harbor
from workers.handlers.harbor.reading import BadTask, HarborTask
from workers.handlers.harbor.row import Solved, TaskRow
from workers.handlers.harbor.verifying import NoReward, eval_ms
from workers.rehearsal.stages import Rehearsal, task_of

SOLUTION = "/solution"
SOLVE_S = 1800.0


class AgentLine(NamedTuple):
    """The end of one agent in one task."""

    task: str
    agent: str  # oracle or nop, as Harbor calls them
    reward: float | None
    fault: str | None
    seconds: float


class Nop(Harbor):
    """Does nothing."""

    async def act(self, context: Run, row: TaskRow, sandbox: Sandbox) -> tuple[Trajectory | None, str | None]:  # noqa: ARG002
        return None, None


class Oracle(Harbor):
    """Runs the task's own solution in the agent's place."""

    def __init__(self, solved: Solved) -> None:
        self._solved = solved

    async def act(self, context: Run, row: TaskRow, sandbox: Sandbox) -> tuple[Trajectory | None, str | None]:
        await files.put(sandbox, self._solved.files, SOLUTION)
        command = f"chmod +x {SOLUTION}/solve.sh; {SOLUTION}/solve.sh >/logs/agent/oracle.txt 2>&1"
        environment = {**row.environment, "DEBIAN_FRONTEND": "noninteractive", **self._solved.environment}
        timeout_s = min(SOLVE_S, context.clock.left_s)
        await sandbox.run(place.in_container(environment, row.workdir, command), timeout_s=timeout_s)
        return None, None


async def checked(rehearsal: Rehearsal, paths: Sequence[Path]) -> AsyncIterator[AgentLine]:
    """Both agents in each task, in turn; a task that is refused has one line."""
    for found in await asyncio.to_thread(lambda: list(read_all(paths))):
        if isinstance(found, BadTask):
            yield AgentLine(str(found).partition(":")[0], "reader", None, "; ".join(found.problems), 0.0)
            continue
        if found.solution is None:
            yield AgentLine(found.name, "oracle", None, "there is no solution/solve.sh in it", 0.0)
        else:
            yield await _earns(rehearsal, found, "oracle", Oracle(found.solution), 1.0)
        yield await _earns(rehearsal, found, "nop", Nop(), 0.0)


async def _earns(rehearsal: Rehearsal, task: HarborTask, agent: str, handler: Handler, wanted: float) -> AgentLine:
    began, reward = monotonic(), None
    try:
        reward = await earned(rehearsal, task, handler)
        fault = None if reward == wanted else f"it earns {reward:g}, and should earn {wanted:g}"
    except NoReward as error:
        fault = f"{error}; the verifier said:\n{error.printed}"
    except Exception as error:
        fault = f"{type(error).__name__}: {error}"
    return AgentLine(task.name, agent, reward, fault, monotonic() - began)


async def earned(rehearsal: Rehearsal, task: HarborTask, handler: Handler) -> float:
    """The reward of one agent."""
    told = line(replaced(task) if isinstance(handler, Oracle) else task)
    made = replace(task_of(handler, told["payload"], task.name), sealed=told["sealed"], egress=task.egress)
    handler.schema = replace(handler.schema, eval_ms=eval_ms(task.config.verifier.timeout_sec))
    run_s = task.config.agent.timeout_sec or Limits().run_ms / 1000
    ran = await rehearsal.run(handler, made, [], run_s=run_s)
    return (await rehearsal.score(handler, made, ran)).reward


def replaced(task: HarborTask) -> HarborTask:
    """The task with a place for the solution."""
    return task._replace(row=replace(task.row, empty=[*task.row.empty, SOLUTION]))
