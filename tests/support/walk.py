"""Walks: rollouts of many turns in sandboxes, with a policy that says the same whenever it is asked the same.

So a walk that continued where a worker had died is, token by token, the one that nobody disturbed.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from prorl_mq.schema.codec import decode_trajectory
from prorl_mq.schema.messages import BatchRequest, GroupRecord, GroupRequest, Limits, Sampling, Task
from prorl_mq.schema.trajectory import Trajectory, check
from prorl_mq.store import jobs
from prorl_mq.store.store import Store
from prorl_mq.testing.fake_backend import FakeBackend
from prorl_mq.testing.sampling import FakeSampling, Reply
from tests.agent.chat import MARKERS, TOOLED, call, tokenizer, tooled
from tests.chaos.handler import STEPS

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
        self._renderer = tooled()
        self.backend = FakeBackend(reply=self.reply)

    def reply(self, prompt_ids: Sequence[int], _: FakeSampling) -> Reply:
        text = self._renderer.text(prompt_ids)
        asked = ASKED.search(text)
        if asked is None:  # a probe
            return Reply(ids=[self._renderer.end_of_turn], finish_reason="stop")
        step = text.count("\n<tool_response>\n")
        said = "I am there." if step >= int(asked[2]) else self._step(step)
        return Reply(ids=[*self._renderer.ids(said), self._renderer.end_of_turn], finish_reason="stop")

    def _step(self, step: int) -> str:
        if step % 5 == 4:
            lines = ["import time", f"open('{STEPS}', 'a').write('{step}\\n')", f"time.sleep({self.sleep_s})"]
            code = "\n".join([*lines, f"len(open('{STEPS}').readlines())"])
            return call("execute_ipython_cell", json.dumps({"code": code}))
        command = f"echo {step} >>{STEPS}; sleep {self.sleep_s}; wc -l <{STEPS}"
        return call("execute_bash", json.dumps({"command": command}))

    def finished(self) -> Counter[tuple[int, ...]]:
        """How often each prompt was answered to the end."""
        return Counter(tuple(each.call.prompt_ids) for each in self.backend.requests if each.state == "done")


def walks(batch: str, count: int, steps: int) -> BatchRequest:
    """One job a group."""
    groups = [
        GroupRequest(
            task=Task(task_id=f"w{place}", data_source="walk", payload={"name": f"w{place}", "steps": steps}), n=1
        )
        for place in range(count)
    ]
    sampling = Sampling(max_turns=steps + 1, max_tokens=1 << 20, max_context_tokens=1 << 20, seed=1)
    return BatchRequest(run_id="chaos", batch_id=batch, groups=groups, limits=LIMITS, sampling=sampling)


async def trajectories(store: Store, records: Sequence[GroupRecord]) -> Mapping[str, Trajectory]:
    """By task. Each is whole, and has the reward of a walk on which every step was taken once."""
    found = {}
    for record in records:
        [sample] = record.samples
        assert sample.reward == 1.0, sample
        blob = await jobs.blob(store, sample.trajectory or "")
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
