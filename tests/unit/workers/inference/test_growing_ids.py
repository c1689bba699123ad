"""A prompt's JSON grows with its ids, and is always that of all of them."""

import json

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from workers.agent.tokens import TokenRecord
from workers.inference.protocol import Completion
from workers.inference.request import GrowingIds, ids_as_json

IDS = st.lists(st.integers(0, 200_000), max_size=6)


@given(first=IDS, more=st.lists(st.tuples(IDS, st.booleans()), max_size=6))
def test_however_it_grows_the_json_is_that_of_all_ids(first: list[int], more: list[tuple[list[int], bool]]) -> None:
    ids, told = GrowingIds(first), list(first)
    for piece, sent in more:
        ids.extend(piece)
        told += piece
        if sent:
            assert json.loads(bytes(ids_as_json(ids))) == told
    assert json.loads(bytes(ids_as_json(ids))) == told == ids.tolist()
    ids.settle()
    assert json.loads(bytes(ids_as_json(ids))) == told


def test_what_was_sent_stays_as_it_was() -> None:
    """A body that is being sent must not change under the transport, nor keep the ids from growing."""
    ids = GrowingIds([1, 2])
    sent = ids_as_json(ids)
    ids.extend([3])
    assert bytes(sent) == b"[1,2]"
    assert bytes(ids_as_json(ids)) == b"[1,2,3]"


def test_any_other_sequence_is_sent_as_it_is() -> None:
    assert msgspec.json.encode({"ids": ids_as_json((7, 8))}) == b'{"ids":[7,8]}'


def test_a_record_frees_the_json_of_a_segment_that_is_over() -> None:
    record = TokenRecord([5, 6])
    record.sample(Completion(ids=[7], logprobs=[-0.5], finish_reason="stop", backend="b"))
    before = record.context
    assert isinstance(before, GrowingIds)
    assert bytes(ids_as_json(before)) == b"[5,6,7]"
    record.compact([9])
    assert bytes(ids_as_json(record.context)) == b"[9]"
    assert len(before._json) == 1
