"""Closed groups with trajectories, as workers leave them."""

from prorl_mq.clock import monotonic
from prorl_mq.duties.archiving.turns import Archiving
from prorl_mq.schema.codec import encode_trajectory
from prorl_mq.schema.items import Advance
from prorl_mq.schema.messages import Stage
from prorl_mq.schema.trajectory import PromptMessage, Segment, Span, ToolCall, Trajectory, Turn
from prorl_mq.store.archive import waiting
from tests.support.queue import Queue

PATIENCE_S = 30.0


def trajectory(seed: int = 0) -> Trajectory:
    """Two turns in two segments, with every field that a page shows."""
    call = ToolCall(name="bash", arguments='{"command": "ls"}', result="a\nb\n", ok=True, seconds=0.5)
    turns = [
        Turn(segment=0, prompt_tokens=2, completion_tokens=2, cached_tokens=None, finish_reason="stop",
             llm_seconds=0.25, text="I look.", tool_calls=[call], started_seconds=1.0),
        Turn(segment=1, prompt_tokens=1, completion_tokens=1, cached_tokens=1, finish_reason="stop", llm_seconds=0.5,
             text="Two.", content="Two.", reasoning="a, b"),
    ]  # fmt: skip
    spans = [Span(start=0, end=2, backend="http://b1", version=("3", "4"))]
    asked = PromptMessage(role="user", content="Count.")
    told = [-0.1, -1 / 3, None]
    first = Segment(prompt_ids=[seed, 2], response_ids=[3, 4, 5], loss_mask=[1, 1, 0], logprobs=told,
                    spans=spans, prompt_text="Count.", messages=[asked])  # fmt: skip
    second = Segment(prompt_ids=[9], response_ids=[7], loss_mask=[1], logprobs=[-2.5],
                     spans=[Span(start=0, end=1, backend="http://b1")], opened_by="compaction")  # fmt: skip
    return Trajectory(
        segments=[first, second], turns=turns, stop_reason="finish", temperature=0.7, tools=[{"name": "bash"}]
    )


async def close(queue: Queue, group: str = "g", *, told: Trajectory | None = None) -> None:
    """A published group of one sample with a trajectory in Redis."""
    await queue.admitted(group=group, batch=f"b-{group}")
    [held] = await queue.take(Stage.INIT)
    await queue.store.advance([Advance(held, None, b"")])
    [held] = await queue.take(Stage.RUN)
    data, key = encode_trajectory(told or trajectory()), queue.keys.blob(held.ref, held.token, "trajectory")
    await queue.store.put(key, data, ttl_ms=60_000)
    await queue.store.advance([Advance(held, None, b"", key, len(data))])
    [held] = await queue.take(Stage.EVAL)
    assert await queue.finish(held, trajectory=key, trajectory_bytes=len(data), turns=2) == "finished"
    await queue.settle()


async def acknowledged(queue: Queue, archiving: Archiving, *groups: str) -> None:
    """Groups that have closed and were acknowledged while there was an archive."""
    await archiving.turn()
    for group in groups:
        await close(queue, group)
    assert await queue.ack_all() == len(groups)


async def written(queue: Queue, archiving: Archiving) -> None:
    """Turns until nothing waits."""
    give_up = monotonic() + PATIENCE_S
    while (state := await waiting.state(queue.store)).groups:
        assert monotonic() < give_up, state
        await archiving.turn()
