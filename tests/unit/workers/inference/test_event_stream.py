"""Events come out of a stream whole and once, wherever its bytes were cut."""

import random

import pytest

from prorl_mq.process.http_connection import BrokenAnswer
from workers.inference import event_stream
from workers.inference.event_stream import EventReader

STREAM = b"data: a\n\ndata:b\r\n: c\nevent: x\ndata: \ndata: [DONE]\ndata:" + b"long " * 20 + b"\ndata: not over"


@pytest.mark.parametrize("seed", range(20))
def test_any_cut_gives_the_same_events(seed: int) -> None:
    source, found = random.Random(seed), list[bytes]()
    reader, place = EventReader(found.append), 0
    while place < len(STREAM):
        size = source.randint(1, 1 + seed * 4)
        reader.feed(STREAM[place : place + size])
        place += size
    assert found == [b"a", b"b", (b"long " * 20).strip()]


def test_a_line_without_end_is_refused_and_several_short_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "_MAX_EVENT_BYTES", 100)
    reader = EventReader(lambda _: None)
    for _ in range(10):
        reader.feed(b"data: " + b"x" * 50)
        reader.feed(b"\n")
    reader.feed(b"data: " + b"x" * 90)
    with pytest.raises(BrokenAnswer, match="an event exceeds 100 bytes"):
        reader.feed(b"x" * 5)
