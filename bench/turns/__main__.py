"""Cost of workers' deaths for rollouts of many turns, and of the log of turns where nobody dies.

First one job's records by themselves: bytes and CPU; then the CPU of looking at a sandbox. Then walks
(`tests.support.walk`) in real sandboxes on one node, whose two RUN workers are killed or stopped in turn: with the log
of turns, and without it, as before. Then how soon a rollout continues after its worker's death. With `--full`, many
walks instead (`bench.turns.many`).
"""

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from array import array
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.turns.forks import forks
from bench.turns.handover import handover
from bench.turns.many import lost, many
from bench.turns.saving import records, savings
from prorl_mq.schema.codec import encode_trajectory
from prorl_mq.schema.messages import Sampling
from prorl_mq.schema.trajectory import Trajectory
from prorl_mq.service import submit
from prorl_mq.store.store import Store
from sandbox.protocol import ShellResult
from tests.agent.chat import ScriptedPolicy, call, tooled
from tests.support.service import acknowledge_all, gather, store_of
from tests.support.walk import Walker, kill_on, started, told, trajectories, walks
from tests.support.world import World
from workers.agent.hermes import Message
from workers.agent.loop import run_agent
from workers.agent.tools import TOOLS
from workers.inference.protocol import Completion
from workers.inference.run_clock import RunClock
from workers.rehearsal.memory_log import MemoryLog

STEP_S = 0.15
LINES = ["def total(values): return sum(value for value in values if value is not None)  # of those that are there\n"]


class Outcome(msgspec.Struct):
    """One batch of walks. `asked`: completions that the backend gave; `twice`: those of them it had given before."""

    seconds: float
    asked: int
    twice: int
    deaths: int
    equal: int  # trajectories that equal the undisturbed one
    rest: float  # of a rollout's time, the part that is neither the policy's nor its calls': the median


async def batch(
    world: World, store: Store, walker: Walker, name: str, source: str, size: tuple[int, int], seed: int | None,
    calm: dict[str, Trajectory],
) -> Outcome:  # fmt: skip
    """One batch, killed at where there is a seed. The first one fills `calm`."""
    count, steps = size
    walker.backend.requests.clear()
    before = int(await store.read("HGET", store.keys.counters, "reclaims:reap") or 0)
    began = time.monotonic()
    await submit.accept(store, "default", walks(name, count, steps, source))
    killing = None if seed is None else asyncio.create_task(kill_on(world, random.Random(seed)))
    try:
        records = await gather(store, None, count, within_s=1800)
    finally:
        if killing is not None:
            killing.cancel()
            await asyncio.gather(killing, return_exceptions=True)
    found = await trajectories(store, records)
    calm.update({} if calm else found)
    given = walker.finished()
    await acknowledge_all(store)
    for worker in ("run-0", "run-1"):
        world.thaw(worker)
    return Outcome(
        time.monotonic() - began,
        given.total(),
        given.total() - len(given),
        int(await store.read("HGET", store.keys.counters, "reclaims:reap") or 0) - before,
        sum(told(each) == told(calm[name]) for name, each in found.items()),
        statistics.median(map(rest, found.values())),
    )


def rest(trajectory: Trajectory) -> float:
    """The part of a rollout's time in which neither the policy nor a call was waited for."""
    turns = trajectory.turns
    waited = [turn.llm_seconds + sum(call.seconds for call in turn.tool_calls) for turn in turns]
    return 1 - sum(waited) / (turns[-1].started_seconds + waited[-1] - turns[0].started_seconds)


async def killed(kind: str, size: tuple[int, int], rounds: int) -> None:
    with tempfile.TemporaryDirectory(prefix="pq") as directory:
        world = World(Path(directory), sandbox=kind, handlers="walk,walk_again")
        calm: dict[str, Trajectory] = {}
        try:
            async with store_of(world) as store, (walker := Walker(STEP_S)).backend:
                await started(world, store, walker, slots=size[0])
                print("| workers | log | seconds | deaths | completions | sampled twice | equal | rest, % |")
                print("|---|---|--:|--:|--:|--:|--:|--:|")
                for number in range(rounds):
                    for label, source, seed in (
                        ("undisturbed", "walk", None), ("undisturbed", "walk-again", None),
                        ("killed", "walk", number), ("killed", "walk-again", number),
                    ):  # fmt: skip
                        done = await batch(world, store, walker, f"{label}-{source}-{number}", source, size, seed, calm)
                        log = "yes" if source == "walk" else "no"
                        print(
                            f"| {label} | {log} | {done.seconds:.0f} | {done.deaths} | {done.asked} | {done.twice} "
                            f"| {done.equal} of {size[0]} | {100 * done.rest:.1f} |",
                            flush=True,
                        )
        finally:
            world.stop()


class Source:
    """A sandbox that prints source text."""

    def named(self, _: str) -> "Source":
        return self

    async def bash(self, *_: object, **__: object) -> ShellResult:
        return ShellResult(output="".join(LINES * 14), exit_code=0)


class Sampling32(ScriptedPolicy):
    """Log-probabilities as a server computes them, in 32 bits."""

    async def generate(self, prompt_ids: Sequence[int], **more: object) -> Completion:
        completion = await super().generate(prompt_ids, **more)  # type: ignore[arg-type]
        rng = random.Random(len(prompt_ids))
        packed = [rng.random() for _ in completion.ids]
        return msgspec.structs.replace(completion, logprobs=[-value for value in array("f", packed)])


async def costs(turns: int, rounds: int) -> None:
    """Bytes of a log against its trajectory's, and the CPU of a turn with and without it."""
    text = "I look at it again, then I change it.\n" * 5 + call("execute_bash", '{"command": "cat total.py"}')
    cpu: dict[bool, list[float]] = {True: [], False: []}
    logged = stored = tokens = 0
    for number in range(2 * rounds):
        log = MemoryLog() if number % 2 else None
        policy = Sampling32(tooled(), [*[text] * turns, "Done."])
        began = time.process_time()
        result = await run_agent(
            policy=policy,
            renderer=policy.renderer,
            messages=[Message(role="user", content="Fix it.")],
            tools=list(TOOLS.values()),
            sandbox=Source(),  # type: ignore[arg-type]
            sampling=Sampling(max_turns=turns + 1, max_tokens=1 << 20, max_context_tokens=1 << 20),
            sample="bench:0",
            deadline=RunClock(600),
            log=log,
        )
        cpu[log is not None].append((time.process_time() - began) / turns * 1e3)
        if log is not None:
            logged, stored = sum(map(len, log.records)), len(encode_trajectory(result.trajectory))
            tokens = sum(len(each.prompt_ids) + len(each.response_ids) for each in result.trajectory.segments)
    more = statistics.median(cpu[True]) - statistics.median(cpu[False])
    print(f"{turns} turns, {tokens} tokens: log {logged} bytes, {logged / stored:.2f} of the trajectory's {stored}")
    print(f"CPU of the loop a turn, ms: {statistics.median(cpu[False]):.2f}; with its records {more:+.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.turns", description=__doc__)
    parser.add_argument("--kind", default="bubblewrap")
    parser.add_argument("--walks", type=int, default=12)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--full", action="store_true", help="500 walks of 40 steps, and of many lengths (an hour)")
    parser.add_argument("--many", type=int, default=500, help="walks of --full")
    parser.add_argument("--forks", action="store_true", help="forks of a walk of 40 turns alone (one minute)")
    parser.add_argument("--watched", action="store_true", help="deaths that a keeper sees alone (5 s each)")
    parser.add_argument("--lost", action="store_true", help="walks of --many on two nodes, one lost every 20 s, alone")
    given = parser.parse_args()
    if given.watched:
        asyncio.run(handover(given.kind, given.kills, ["watched"]))
        return
    if given.forks:
        asyncio.run(forks(given.kind, given.rounds))
        return
    if given.lost:
        asyncio.run(lost(given.kind, (given.many, given.steps)))
        return
    if given.full:
        asyncio.run(many(given.kind, (given.many, given.steps)))
        return
    asyncio.run(costs(40, 2 * given.rounds))
    asyncio.run(savings(given.kind, 2 * given.rounds))
    asyncio.run(records(2 * given.rounds))
    asyncio.run(killed(given.kind, (given.walks, given.steps), given.rounds))
    asyncio.run(handover(given.kind, given.kills))
    asyncio.run(forks(given.kind, given.rounds))


if __name__ == "__main__":
    main()
