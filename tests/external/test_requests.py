"""What is read of a request, apart from who sent it and what answers it."""

import importlib

import msgspec
import pytest

from workers.external import request
from workers.external.parameters import ROUTES
from workers.external.request import RequestMemory


def test_a_value_that_fills_the_memory_is_read_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, read = RequestMemory(), tuple
    small, large = (msgspec.Raw(msgspec.json.encode([text])) for text in ("a", "b" * 100))
    kept = memory.once(small, read)
    assert memory.once(small, read) is kept
    monkeypatch.setattr(request, "_MEMORY_BYTES", 64)
    assert memory.once(large, read) == ("b" * 100,)
    assert memory.once(small, read) is not kept  # it was forgotten with the rest


@pytest.mark.parametrize(
    ("route", "module", "prefix"),
    [
        ("/v1/chat/completions", "openai.types.chat.completion_create_params", "Completion"),
        ("/v1/completions", "openai.types.completion_create_params", "Completion"),
        ("/v1/responses", "openai.types.responses.response_create_params", "Response"),
        ("/v1/messages", "anthropic.types.message_create_params", "Message"),
        ("/v1/messages", "anthropic.types.beta.message_create_params", "Message"),
    ],
)
def test_the_tables_have_all_parameters_of_the_clients(route: str, module: str, prefix: str) -> None:
    pytest.importorskip(module.partition(".")[0])
    params = importlib.import_module(module)
    for kind in ("NonStreaming", "Streaming"):
        known = getattr(params, f"{prefix}CreateParams{kind}")
        names = known.__required_keys__ | known.__optional_keys__
        assert "model" in names
        assert not names - set(ROUTES[route])
