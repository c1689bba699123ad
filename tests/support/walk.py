"""Walks: rollouts of many turns in sandboxes, with a policy that says the same whenever it is asked the same.

So a walk that continued where a worker had died is, token by token, the one that nobody disturbed.
"""

import asyncio
import json
import random
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from prorl_mq.schema.codec import decode_trajectory
from prorl_mq.schema.messages import BatchRequest, GroupRecord, GroupRequest, Limits, Sampling, Stage, Task
from prorl_mq.schema.trajectory import Trajectory, check
from prorl_mq.store import pools, streams
from prorl_mq.store.payloads import reading as payloads
from prorl_mq.store.server import fitness
from prorl_mq.store.server.connection import patiently
from prorl_mq.store.store import Store
from prorl_mq.testing.fake_backend import FakeBackend
from prorl_mq.testing.sampling import FakeSampling, Reply, made_up_logprobs
from tests.agent.chat import MARKERS, TOOLED, call, tokenizer, tooled
from tests.chaos.handler import STEPS
from tests.support.service import until
from tests.support.world import World
from workers.inference.probe import PROBE_ID

ASKED = re.compile(r"(\S+) walks (\d+) steps")
LIMITS = Limits(max_deaths=100, max_attempts=100, backoff_ms=50, run_ms=600_000, total_ms=3_600_000)


def vocabulary(directory: Path) -> dict[str, str]:
    """The environment of workers whose model has a token for each byte, kept in a directory."""
    tokenizer(TOOLED, MARKERS).save_pretrained(directory)
    return {"PRORL_TOKENIZER": str(directory)}


class Walker:
    """A backend's policy. `sleep_s`: how long a step takes; every fifth is one of IPython."""

    def __init__(self, sleep_s: float) -> None:
        self.sleep_s = sleep_s
        self.asked: dict[str, int] = {}  # by walk: the step that was asked for last
        self.moments: dict[str, list[float]] = {}  # by walk: when it asked, on the monotonic clock
        self._renderer = tooled()
        self.backend = FakeBackend(reply=self.reply)

    def reply(self, prompt_ids: Sequence[int], _: FakeSampling) -> Reply:
        text = self._renderer.text(prompt_ids)
        asked = ASKED.search(text)
        if asked is None:  # a probe
            return Reply(ids=[self._renderer.end_of_turn], finish_reason="stop")
        step = self.asked[asked[1]] = text.count("\n<tool_response>\n")
        self.moments.setdefault(asked[1], []).append(time.monotonic())
        said = "I am there." if step >= int(asked[2]) else self._step(step)
        words, prompt = [*self._renderer.ids(said), self._renderer.end_of_turn], list(prompt_ids)
        had = next((at for at in range(len(words), 0, -1) if prompt[-at:] == words[:at]), 0)  # the rest of a turn
        return Reply(ids=words[had:], logprobs=made_up_logprobs(words)[had:], finish_reason="stop")

    def _step(self, step: int) -> str:
        if step % 5 == 4:
            lines = ["import time", f"open('{STEPS}', 'a').write('{step}\\n')", f"time.sleep({self.sleep_s})"]
            code = "\n".join([*lines, f"len(open('{STEPS}').readlines())"])
            return call("execute_ipython_cell", json.dumps({"code": code}))
        command = f"echo {step} >>{STEPS}; sleep {self.sleep_s}; wc -l <{STEPS}"
        return call("execute_bash", json.dumps({"command": command}))

    def steps_taken(self) -> list[int]:
        """What each step of the walk that asked last was told: how many there had been by then."""
        text = self._renderer.text(self.backend.requests[-1].call.prompt_ids)
        return [int(count) for count in re.findall(r"\n<tool_response>\n(\d+)\n", text)]

    def finished(self) -> Counter[tuple[int, ...]]:
        """How often each prompt was answered to the end, but those of probes, of which each worker sends its own."""
        prompts = (tuple(each.call.prompt_ids) for each in self.backend.requests if each.state == "done")
        return Counter(prompt for prompt in prompts if prompt != (PROBE_ID,))


def walks(batch: str, count: int, steps: int, source: str = "walk", **sampled: Any) -> BatchRequest:
    """One job a group. `sampled`: fields of its sampling."""
    groups = [
        GroupRequest(
            task=Task(task_id=f"w{place}", data_source=source, payload={"name": f"w{place}", "steps": steps}), n=1
        )
        for place in range(count)
    ]
    about = {"max_turns": steps + 1, "max_tokens": 1 << 20, "max_context_tokens": 1 << 20, "seed": 1, **sampled}
    sampling = Sampling(**about)
    return BatchRequest(run_id="chaos", batch_id=batch, groups=groups, limits=LIMITS, sampling=sampling)


async def trajectories(store: Store, records: Sequence[GroupRecord]) -> Mapping[str, Trajectory]:
    """By task. Each is whole, and has the reward of a walk on which every step was taken once."""
    found = {}
    for record in records:
        [sample] = record.samples
        assert sample.reward == 1.0, sample
        blob = await payloads.get(store, "default", sample.trajectory or "")
        assert blob is not None
        found[record.task_id] = decode_trajectory(blob)
        check(found[record.task_id])
    return found


def told(trajectory: Trajectory) -> Any:
    """All of it but times, cache counts and the backend's address."""
    plain = msgspec.to_builtins(trajectory)
    for turn in plain["turns"]:
        for name in ("started_seconds", "llm_seconds", "cached_tokens"):
            del turn[name]
        for each in turn["tool_calls"]:
            del each["seconds"]
    for segment in plain["segments"]:
        for span in segment["spans"]:
            del span["backend"]
    return plain


async def started(world: World, store: Store, walker: Walker, *, slots: int, spare: int = 0, nodes: int = 1) -> None:
    """One node with two workers in RUN, or several with one each."""
    (world.directory / "state").mkdir(mode=0o755)
    world.directory.chmod(0o755)
    world.env |= vocabulary(world.directory / "model")
    world.start_redis()
    await patiently(lambda: fitness.start_up(store.redis), outage_ms=20_000)
    await patiently(lambda: streams.ensure(store.redis, streams.shared(store.keys)), outage_ms=20_000)
    await pools.add(store, "default:policy", walker.backend.address)
    world.start_api(0)
    for stage, count in ((Stage.INIT, nodes), (Stage.RUN, max(2, nodes)), (Stage.EVAL, 1)):
        for number in range(count):
            node = number % nodes
            place = (
                ("--node", f"n{node}", "--state-dir", str(world.directory / "state" / str(node))) if nodes > 1 else ()
            )
            world.start_worker(stage, number, "--slots", f"{slots}+{spare}", *place)

    async def known() -> bool:
        return int(await store.read("ZCARD", store.keys.workers)) >= 4

    await until(known, within_s=60)


async def kill_on(world: World, rng: random.Random) -> None:
    """Kills a RUN worker, or stops it until its lease is long over, then does the same to the other one."""
    name = "run-0"
    while True:
        await asyncio.sleep(rng.uniform(0.5, 2.0))
        name = "run-1" if name == "run-0" else "run-0"
        if rng.random() < 0.6:
            world.kill(name)
            world.restart(name)
        else:
            world.freeze(name)
            await asyncio.sleep(3 * world.lease_ms / 1000)
            world.thaw(name)
        await asyncio.sleep(1.0)


async def lose_on(world: World, walker: Walker, *, times: int, turns: int) -> None:
    """Kills all workers of a node after so many turns of all walks, and starts them again once their jobs are
    elsewhere; of one node after the other.
    """
    for node in (number % 2 for number in range(times)):
        wanted = walker.finished().total() + turns
        while walker.finished().total() < wanted:
            await asyncio.sleep(0.05)
        names = [f"{Stage.INIT}-{node}", f"{Stage.RUN}-{node}"]
        for name in names:
            world.kill(name)
        await asyncio.sleep(4 * world.lease_ms / 1000)
        for name in names:
            world.restart(name)
        await asyncio.sleep(4 * world.lease_ms / 1000)  # they read again
