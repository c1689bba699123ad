"""What is read of a request, apart from who sent it and what answers it."""

import msgspec
import pytest

from workers.external import request
from workers.external.request import RequestMemory


def test_a_value_that_fills_the_memory_is_read_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, read = RequestMemory(), tuple
    small, large = (msgspec.Raw(msgspec.json.encode([text])) for text in ("a", "b" * 100))
    kept = memory.once(small, read)
    assert memory.once(small, read) is kept
    monkeypatch.setattr(request, "_MEMORY_BYTES", 64)
    assert memory.once(large, read) == ("b" * 100,)
    assert memory.once(small, read) is not kept  # it was forgotten with the rest
