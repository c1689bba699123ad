"""Rollouts as the agent's record makes them: with tools, cut, and with a compacted history."""

import functools

from msgspec.structs import replace

from prorl_mq.converters.rollout import Rollout, rollout
from prorl_mq.schema.messages import Outcome, SampleRecord, Sampling
from prorl_mq.schema.trajectory import ToolCall, Trajectory, Turn, check
from prorl_mq.schema.turns import CompletionSpan
from workers.agent.tokens import TokenRecord
from workers.inference.protocol import Completion

END = 99
LOGPROB = -0.5


class Script:
    """A record that is written turn by turn. Ids of a turn are `10 * turn + 1` and so on."""

    def __init__(self, prompt: list[int]) -> None:
        self.record = TokenRecord(prompt)
        self.turns = 0

    def turn(self, *, tool: str | None = None, cut: bool = False, versions: str = "7") -> None:
        self.turns += 1
        ids = [10 * self.turns + 1, 10 * self.turns + 2, *([] if cut else [END])]
        place = len(self.record.context)
        spans = [
            CompletionSpan(
                start=at, end=at + 1 if at + 1 < len(versions) else len(ids), backend="b", version=(each, each)
            )
            for at, each in enumerate(versions)
        ]
        logprobs = [LOGPROB * (number + 1) for number in range(len(ids))]
        self.record.sample(
            Completion(ids=ids, logprobs=logprobs, finish_reason="length" if cut else "stop", backend="b", spans=spans)
        )
        calls = (
            [ToolCall(name="think", arguments='{"thought": "x"}', result=tool, ok=True, seconds=0.25)] if tool else []
        )
        self.record.end_turn(
            Turn(
                segment=self.record.segment,
                prompt_tokens=place,
                completion_tokens=len(ids),
                cached_tokens=None,
                finish_reason="length" if cut else "stop",
                llm_seconds=1.5,
                text=f"turn {self.turns}",
                tool_calls=calls,
            )
        )
        if tool:
            self.record.insert([*([END] if cut else []), 5, 6])

    def finished(self, stop_reason: str = "answer", truncated_by: str | None = None) -> Trajectory:
        made = self.record.trajectory(
            stop_reason=stop_reason, truncated_by=truncated_by, sampling=Sampling(), show=lambda ids: f"{len(ids)} ids"
        )
        check(made)
        return made


def sample(**changes: object) -> SampleRecord:
    fields = {"job_id": "run.b.g.0", "index": 3, "outcome": Outcome.COMPLETED, "reward": 0.75, "seconds": {"eval": 2.0}}
    return SampleRecord(**{**fields, **changes})  # type: ignore[arg-type]


@functools.cache
def with_tools() -> Rollout:
    """Two calls, the second after a turn that was cut, then an answer; the weights change in the second turn."""
    script = Script([1, 2])
    script.turn(tool="one")
    script.turn(tool="two", cut=True, versions="78")
    script.turn(versions="8")
    return rollout("task", sample(), script.finished())


@functools.cache
def truncated() -> Rollout:
    """Cut by the limit of turns, while a tool's answer waits to be read."""
    script = Script([1, 2])
    script.turn(tool="one")
    trajectory = script.finished("max_turns", "turns")
    return rollout("task", sample(outcome=Outcome.TRUNCATED, truncated_by="turns", reward=0.0), trajectory)


@functools.cache
def compacted() -> Rollout:
    """Two segments that sampled, and one that was opened and never answered."""
    script = Script([1, 2])
    script.turn(tool="one")
    script.record.compact([1, 2, 3])
    script.turn(tool="two", versions="8")
    script.turn(versions="9")
    script.record.compact([1])
    return rollout("task", sample(index=4), script.finished("context", "context"))


@functools.cache
def two_models() -> Rollout:
    """The policy's two rows, and behind them one of a model that the task calls `critic`, which is trained as well."""
    whole, other = compacted(), with_tools().trajectory
    count = len(whole.trajectory.segments)
    turns = [replace(each, segment=count + each.segment, model="critic") for each in other.turns]
    segments = [replace(each, opened_by="other") for each in other.segments]
    trajectory = replace(
        whole.trajectory,
        segments=[*whole.trajectory.segments, *segments],
        turns=[*whole.trajectory.turns, *turns],
    )
    check(trajectory)
    return rollout("task", whole.sample, trajectory)


ALL = {"with tools": with_tools, "truncated": truncated, "compacted": compacted}
