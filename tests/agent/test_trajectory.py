"""A trajectory whose parts do not tell the same story is never stored."""

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_mq.schema.codec import encode, pack_trajectory, unpack_trajectory
from prorl_mq.schema.messages import Sampling
from prorl_mq.schema.trajectory import Segment, Span, Trajectory, TrajectoryError, Turn, check
from workers.agent.tokens import TokenRecord
from workers.inference.protocol import Completion

END = 9
T = TypeVar("T")
replace = msgspec.structs.replace


def turn(record: TokenRecord, sampled: list[int]) -> None:
    sent = len(record.context)
    record.sample(
        Completion(ids=sampled, logprobs=[-0.5 * (place + 1) for place in range(len(sampled))], finish_reason="stop")
    )
    record.end_turn(
        Turn(
            segment=record.segment,
            prompt_tokens=sent,
            completion_tokens=len(sampled),
            cached_tokens=None,
            finish_reason="stop",
            llm_seconds=0.0,
            text="",
        )
    )


def made(steps: list[tuple[list[int], list[int], bool]]) -> Trajectory:
    record = TokenRecord([1, 2])
    for sampled, delta, compacted in steps:
        turn(record, sampled)
        if compacted:
            record.compact([1, 3])
        else:
            record.insert(delta)
    turn(record, [4, END])
    return record.trajectory(stop_reason="answer", truncated_by=None, sampling=Sampling())


ids = st.lists(st.integers(0, END), min_size=1, max_size=4)
trajectories = st.lists(st.tuples(ids, ids, st.booleans()), min_size=1, max_size=4).map(made)


def in_segment(change: Callable[[Segment, int], Segment]) -> Callable[[Trajectory, int], Trajectory]:
    """A fault in one segment, at one sampled token of it."""

    def broken(trajectory: Trajectory, pick: int) -> Trajectory:
        segments = list(trajectory.segments)
        place = pick % len(segments)
        sampled = [at for at, mask in enumerate(segments[place].loss_mask) if mask]
        segments[place] = change(segments[place], sampled[pick % len(sampled)])
        return replace(trajectory, segments=segments)

    return broken


def at(values: object, place: int, new: object) -> list:
    return [new if number == place else value for number, value in enumerate(list(values))]  # type: ignore[call-overload]


def without(values: object, place: int) -> list:
    return [value for number, value in enumerate(list(values)) if number != place]  # type: ignore[call-overload]


def in_turn(**changes: int) -> Callable[[Trajectory, int], Trajectory]:
    def broken(trajectory: Trajectory, pick: int) -> Trajectory:
        place = pick % len(trajectory.turns)
        old = trajectory.turns[place]
        moved = replace(old, **{name: getattr(old, name) + by for name, by in changes.items()})
        return replace(trajectory, turns=at(trajectory.turns, place, moved))

    return broken


FAULTS = {
    "an id less": in_segment(lambda s, p: replace(s, response_ids=without(s.response_ids, p))),
    "a mask more": in_segment(lambda s, _: replace(s, loss_mask=[*s.loss_mask, 0])),
    "a log-probability less": in_segment(lambda s, p: replace(s, logprobs=without(s.logprobs, p))),
    "a sampled token called inserted": in_segment(lambda s, p: replace(s, loss_mask=at(s.loss_mask, p, 0))),
    "sampled, without probability": in_segment(lambda s, p: replace(s, logprobs=at(s.logprobs, p, None))),
    "a sampled token all inserted": in_segment(
        lambda s, p: replace(s, loss_mask=at(s.loss_mask, p, 0), logprobs=at(s.logprobs, p, None))
    ),
    "a mask of 2": in_segment(lambda s, p: replace(s, loss_mask=at(s.loss_mask, p, 2))),
    "not a number": in_segment(lambda s, p: replace(s, logprobs=at(s.logprobs, p, math.nan))),
    "infinite": in_segment(lambda s, p: replace(s, logprobs=at(s.logprobs, p, -math.inf))),
    "a negative id": in_segment(lambda s, p: replace(s, response_ids=at(s.response_ids, p, -1))),
    "a span less": in_segment(lambda s, _: replace(s, spans=list(s.spans)[1:])),
    "a span twice": in_segment(lambda s, _: replace(s, spans=[s.spans[0], *s.spans])),
    "a span beyond the end": in_segment(
        lambda s, _: replace(s, spans=[*s.spans, Span(start=len(s.loss_mask), end=len(s.loss_mask) + 1, backend="")])
    ),
    "an empty span": in_segment(lambda s, _: replace(s, spans=[Span(start=0, end=0, backend=""), *s.spans])),
    "another prompt": in_segment(lambda s, _: replace(s, prompt_ids=[*s.prompt_ids, 5])),
    "a turn moved": in_turn(prompt_tokens=1),
    "a turn too long": in_turn(completion_tokens=1),
    "a turn too short": in_turn(completion_tokens=-1),
    "a turn of no segment": in_turn(segment=1000),
    "a turn of an earlier segment": lambda t, _: replace(t, turns=[*t.turns, replace(t.turns[0], segment=-1)]),
    "a turn less": lambda t, p: replace(t, turns=without(t.turns, p % len(t.turns))),
    "a first segment that forked": lambda t, _: replace(
        t, segments=[replace(t.segments[0], opened_by="break"), *t.segments[1:]]
    ),
    "two first segments": lambda t, _: replace(t, segments=[*t.segments, t.segments[0]]),
}


@given(trajectories)
def test_what_a_record_makes_is_accepted(trajectory: Trajectory) -> None:
    check(trajectory)


@pytest.mark.parametrize("fault", FAULTS)
@given(trajectory=trajectories, pick=st.integers(0, 1000))
def test_every_fault_is_found(fault: str, trajectory: Trajectory, pick: int) -> None:
    broken = FAULTS[fault](trajectory, pick)
    # Taking a turn away hides nothing if it was the only one: without turns there is nothing to compare.
    if fault == "a turn less" and not broken.turns:
        return
    with pytest.raises(TrajectoryError):
        check(broken)


def test_an_inserted_token_with_a_probability_is_found() -> None:
    trajectory = made([([5, END], [7], False)])
    [segment] = trajectory.segments
    inserted = list(segment.loss_mask).index(0)
    for probability in (0.0, -1.0):
        with pytest.raises(TrajectoryError, match=f"token {inserted}: mask 0 with log-probability {probability}"):
            check(
                replace(trajectory, segments=[replace(segment, logprobs=at(segment.logprobs, inserted, probability))])
            )


@pytest.mark.anyio
@given(trajectory=trajectories)
async def test_a_stored_trajectory_comes_back_as_it_was(trajectory: Trajectory) -> None:
    assert encode(await unpack_trajectory(await pack_trajectory(trajectory))) == encode(trajectory)


@pytest.mark.anyio
async def test_a_broken_trajectory_is_not_stored() -> None:
    with pytest.raises(TrajectoryError, match="a token id is negative"):
        await pack_trajectory(FAULTS["a negative id"](made([]), 0))


@pytest.mark.anyio
async def test_the_event_loop_runs_while_a_long_trajectory_is_stored_and_read() -> None:
    count = 200_000
    segment = Segment(
        prompt_ids=[1],
        response_ids=list(range(count)),
        loss_mask=[1] * count,
        logprobs=[-0.25] * count,
        spans=[Span(start=0, end=count, backend="b")],
    )
    trajectory = Trajectory(segments=[segment], turns=[], stop_reason="answer")
    data = await counting(pack_trajectory(trajectory))
    assert len((await counting(unpack_trajectory(data))).segments[0].response_ids) == count


async def counting(work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.create_task(work)
    turns_of_the_loop = 0
    while not task.done():
        await asyncio.sleep(0)
        turns_of_the_loop += 1
    assert turns_of_the_loop > 2
    return await task
