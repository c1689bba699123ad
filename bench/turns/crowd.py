"""CPU of a rollout's turn besides its call, and the lag of an event loop that has many rollouts.

    python -m bench.turns.crowd [--rollouts 300] [--turns 20] [--context 8000] [--rounds 5]

The agent loop as a RUN worker has it, on its event loop, with its log of turns in memory: one call of a tool a turn, a
policy that answers after a pause without any CPU, and a sandbox that answers at once. A token is a byte, so that a text
has about four times as many as with a real tokenizer. CPU is of the process, and of the loop's thread alone; both have
the first prompt and the trajectory in them. `once_ms` is the CPU of a rollout that answers in its first turn,
`turn_ms` that of each turn beside it. The lag is that of a timer of 5 ms.
"""

import argparse
import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final

import uvloop

from bench import measure
from bench.report import goal, goal_lines, spread, write
from prorl_mq.process.collector import calm
from prorl_mq.schema.messages import Sampling
from sandbox.protocol import ShellResult
from tests.agent.chat import call, tooled
from workers.agent.hermes import Message
from workers.agent.loop import run_agent
from workers.agent.renderer import Renderer
from workers.agent.tools import TOOLS
from workers.inference.protocol import Completion
from workers.inference.run_clock import RunClock
from workers.rehearsal.memory_log import MemoryLog

ANSWER_S: Final = 2.0  # of a policy that serves so many
TIMER_S: Final = 0.005
OUTPUT: Final = "def total(values): return sum(value for value in values if value is not None)\n" * 5
TEXT: Final = "I look at it again, then I change it.\n" * 4 + call("execute_bash", '{"command": "cat total.py"}')


class Paused:
    """Answers after a pause, with what was encoded before."""

    def __init__(self, renderer: Renderer, turns: int) -> None:
        self._ids = [[*renderer.ids(text), renderer.end_of_turn] for text in (TEXT, "Done.")]
        self._left = turns

    async def generate(self, prompt_ids: Sequence[int], **_: Any) -> Completion:
        await asyncio.sleep(ANSWER_S)
        ids = self._ids[0 if self._left else 1]
        self._left -= 1
        return Completion(
            ids=ids, logprobs=[-0.5] * len(ids), finish_reason="stop", stop_token=ids[-1], backend="bench",
            prompt_tokens=len(prompt_ids),
        )  # fmt: skip


class Answering:
    """A sandbox whose commands print some lines at once."""

    def named(self, _: str) -> "Answering":
        return self

    async def bash(self, *_: object, **__: object) -> ShellResult:
        return ShellResult(output=OUTPUT, exit_code=0)


async def _lags(found: list[float]) -> None:
    while True:
        due = time.monotonic() + TIMER_S
        await asyncio.sleep(TIMER_S)
        found.append(1e3 * max(0.0, time.monotonic() - due))


async def once(rollouts: int, turns: int, context: int) -> dict[str, float]:
    renderer, lags = tooled(), list[float]()
    policies = [Paused(renderer, turns) for _ in range(rollouts)]
    most = Sampling(max_turns=turns + 1, max_tokens=1 << 20, max_context_tokens=1 << 20)

    async def rollout(policy: Paused, number: int) -> None:
        await asyncio.sleep(ANSWER_S * number / rollouts)  # jobs begin one after the other
        await run_agent(
            policy=policy,
            renderer=renderer,
            messages=[Message(role="user", content="Fix it. " * (context // 8))],
            tools=list(TOOLS.values()),
            sandbox=Answering(),  # type: ignore[arg-type]
            sampling=most,
            sample=f"bench:{number}",
            deadline=RunClock(600),
            log=MemoryLog(),
        )

    lagging = asyncio.create_task(_lags(lags))
    cpu_s, loop_s = time.process_time(), time.thread_time()
    await asyncio.gather(*map(rollout, policies, range(rollouts)))
    cpu_s, loop_s = time.process_time() - cpu_s, time.thread_time() - loop_s
    lagging.cancel()
    return {
        "cpu_ms": 1e3 * cpu_s / (rollouts * (turns + 1)),
        "loop_ms": 1e3 * loop_s / (rollouts * (turns + 1)),
        "lag_ms_p50": measure.percentile(lags, 0.5),
        "lag_ms_p99": measure.percentile(lags, 0.99),
    }


async def rounds(count: int, *size: int) -> list[dict[str, float]]:
    calm()
    await once(4, 2, 100)
    found = []
    rollouts, turns, context = size
    for _ in range(count):
        alone, whole = await once(rollouts, 0, context), await once(rollouts, turns, context)
        turn_ms = (whole["cpu_ms"] * (turns + 1) - alone["cpu_ms"]) / turns
        found.append({"turn_ms": turn_ms, "once_ms": alone["cpu_ms"], **whole})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.turns.crowd", description=__doc__)
    parser.add_argument("--rollouts", type=int, default=300)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--context", type=int, default=8_000, help="tokens of the first prompt")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    machine = measure.describe_machine()
    rows = uvloop.run(rounds(given.rounds, given.rollouts, given.turns, given.context))
    found = {name: spread([row[name] for row in rows]) for name in rows[0]}
    for name, each in found.items():
        print(f"{name:12} {each.median:8.3f}   {each.min:.3f} to {each.max:.3f}")
    goals = {
        "CPU of a turn, ms": goal(found["turn_ms"].median, "<= 1"),
        "lag of the loop, p99, ms": goal(found["lag_ms_p99"].median, "<= 50"),
    }
    print(goal_lines(goals))
    print(write("turns-crowd", goals, {"machine": machine | {"load_at_end": measure.load()}, "figures": found}))


if __name__ == "__main__":
    main()
