"""The record never lets a token in whose origin it does not know."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_mq.schema.messages import Sampling
from prorl_mq.schema.trajectory import Span, Turn, check
from prorl_mq.schema.turns import CompletionSpan
from workers.agent.tokens import TokenRecord
from workers.inference.protocol import Completion, MalformedAnswer

END, CLOSING, STOP = 99, 98, 97


def completion(ids: list[int], **changes: object) -> Completion:
    return Completion(
        ids=ids,
        logprobs=changes.pop("logprobs", [-1.0] * len(ids)),  # type: ignore[arg-type]
        finish_reason="stop",
        backend="b",
        **changes,  # type: ignore[arg-type]
    )


def finished(record: TokenRecord):
    return record.trajectory(stop_reason="answer", truncated_by=None, sampling=Sampling())


def test_what_follows_a_completion_is_inserted_behind_it() -> None:
    record = TokenRecord([1, 2])
    record.sample(completion([5, END]))
    record.insert([7, 8])
    record.sample(completion([6, END]))
    [segment] = finished(record).segments
    assert segment.response_ids == [5, END, 7, 8, 6, END]
    assert segment.loss_mask == [1, 1, 0, 0, 1, 1]
    assert segment.logprobs == [-1.0, -1.0, None, None, -1.0, -1.0]
    assert [(span.start, span.end) for span in segment.spans] == [(0, 2), (4, 6)]


@pytest.mark.parametrize(
    ("sampled", "inserted"),
    [
        ([5, END], []),  # it ended its turn
        ([5, END, END], []),  # twice, on a backend that ignores the first: both were sampled, both stay
        ([5, END, 6], [END]),  # and continued after it
        ([5, CLOSING], []),  # with another id that the template takes as an end
        ([5, STOP], [END]),  # with a stop id that is no end of a turn
        ([5, 6], [END]),  # cut by a limit, by an abort, or by a backend that keeps the stop id back
        ([], [END]),  # aborted before the first token
    ],
)
def test_what_closes_a_turn_is_inserted_like_the_delta(sampled: list[int], inserted: list[int]) -> None:
    """`test_the_last_sampled_id_decides_what_is_inserted` says what that is."""
    record = TokenRecord([1])
    record.sample(completion(sampled))
    record.insert([*inserted, 7])
    assert list(record.context) == [1, *sampled, *inserted, 7]
    record.sample(completion([8, END]))
    mask = [1] * len(sampled) + [0] * len(inserted) + [0, 1, 1]
    [segment] = finished(record).segments
    assert segment.loss_mask == mask
    assert segment.logprobs == [-1.0 if each else None for each in mask]


def test_what_no_model_answered_is_no_part_of_the_trajectory() -> None:
    record = TokenRecord([1])
    record.sample(completion([5, 6]))
    record.insert([7])
    assert finished(record).segments[0].response_ids == [5, 6]


def test_a_record_takes_few_bytes_a_token() -> None:
    """As lists of numbers, what it holds takes 63."""
    tracemalloc.start()
    try:
        record = TokenRecord(range(1000))
        for _ in range(20):
            record.sample(completion(list(range(1000, 1500)), logprobs=[-0.001 * each for each in range(500)]))
            record.insert(list(range(2000, 2500)))
        assert tracemalloc.get_traced_memory()[0] < 18 * len(record.context)
    finally:
        tracemalloc.stop()


def test_a_compaction_is_a_fork_and_no_break() -> None:
    record = TokenRecord([1, 2])
    record.sample(completion([5, END]))
    record.compact([1, 2, 5, END, 7])  # fits, and is a new segment all the same
    record.sample(completion([8, END]))
    trajectory = finished(record)
    assert [segment.opened_by for segment in trajectory.segments] == ["start", "compaction"]
    assert trajectory.segments[1].prompt_ids == [1, 2, 5, END, 7]
    assert (trajectory.forks, trajectory.breaks) == (1, 0)


def part(start: int, end: int, backend: str, version: str) -> CompletionSpan:
    return CompletionSpan(start=start, end=end, backend=backend, version=(version, version))


def test_a_turn_of_several_backends_keeps_each_ones_span() -> None:
    record = TokenRecord([1])
    record.sample(completion([5, END]))
    record.insert([7])
    parts = [part(0, 2, "a", "1"), part(2, 2, "b", "1"), part(2, 3, "b", "2")]
    record.sample(completion([8, 9, END], spans=parts))
    assert finished(record).segments[0].spans == [
        Span(start=0, end=2, backend="b"),
        Span(start=3, end=5, backend="a", version=("1", "1")),
        Span(start=5, end=6, backend="b", version=("2", "2")),
    ]


@pytest.mark.parametrize(
    "parts",
    [[(0, 2)], [(1, 3)], [(0, 2), (1, 3)], [(0, 1), (2, 3)], [(0, 3), (3, 2), (2, 3)], [(0, 4)]],
)
def test_spans_that_do_not_make_up_the_turn_are_refused(parts: list[tuple[int, int]]) -> None:
    record = TokenRecord([1])
    with pytest.raises(MalformedAnswer, match="do not make up 3 tokens"):
        record.sample(completion([8, 9, END], spans=[part(*each, "a", "1") for each in parts]))


def test_an_answer_to_another_prompt_is_refused() -> None:
    record = TokenRecord([1, 2])
    with pytest.raises(MalformedAnswer, match="counted 3 prompt tokens where 2 were sent"):
        record.sample(completion([5], prompt_tokens=3))


def test_ids_without_log_probabilities_are_refused() -> None:
    with pytest.raises(MalformedAnswer, match="2 ids and 1 log-probabilities"):
        TokenRecord([1]).sample(completion([5, 6], logprobs=[-1.0]))


ids = st.lists(st.integers(0, END), max_size=5)


@given(prompt=ids, steps=st.lists(st.tuples(ids, ids, st.booleans()), max_size=8))
def test_every_history_gives_a_trajectory_that_checks(prompt, steps) -> None:
    record = TokenRecord(prompt)
    for sampled, delta, rewrite in steps:
        record.sample(completion(sampled))
        if rewrite:
            record.compact([0, 1, 2])
        else:
            record.insert(delta)
    trajectory = finished(record)
    check(trajectory)
    assert sum(sum(segment.loss_mask) for segment in trajectory.segments) == sum(len(step[0]) for step in steps)
    assert len(trajectory.segments) == record.forks + 1


def test_turns_are_kept_in_order() -> None:
    record = TokenRecord([1])
    turn = Turn(
        segment=0,
        prompt_tokens=1,
        completion_tokens=0,
        cached_tokens=None,
        finish_reason="stop",
        llm_seconds=0,
        text="",
    )
    record.end_turn(turn)
    assert (record.turns, finished(record).turns) == (1, [turn])
