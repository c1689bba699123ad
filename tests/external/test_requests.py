"""What is read of a request, apart from who sent it and what answers it."""

import importlib
import json
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.external.conftest import HELLO, attempt
from workers.agent.tools import Tool
from workers.external import prompting, request
from workers.external.history import BadRequest, Said, foreign
from workers.external.parameters import ROUTES
from workers.external.prompting import PromptBuilder
from workers.external.request import RequestMemory

CHAT = "/v1/chat/completions"


@pytest.fixture
def door() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def test_a_value_that_fills_the_memory_is_read_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, read = RequestMemory(), tuple
    small, large = (msgspec.Raw(msgspec.json.encode([text])) for text in ("a", "b" * 100))
    kept = memory.once(small, read)
    assert memory.once(small, read) is kept
    monkeypatch.setattr(request, "_MEMORY_BYTES", 64)
    assert memory.once(large, read) == ("b" * 100,)
    assert memory.once(small, read) is not kept  # it was forgotten with the rest


def said(value: Any) -> Sequence[Said]:
    return (Said(role="user", text=repr(value)),)


def read(memory: RequestMemory, body: str) -> list[Said] | None:
    try:
        return memory.messages(msgspec.Raw(body.encode()), said, "messages")
    except BadRequest:
        return None


PIECES = ("1", "12", '"a"', '"a, 1"', '{"b": [1]}', "[]", " 2 ", "", "]", "é")


@settings(deadline=None)
@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=4).map(lambda each: f"[{','.join(each)}]"), max_size=12))
def test_a_list_is_read_the_same_whatever_was_read_before(bodies: list[str]) -> None:
    memory = RequestMemory()
    for body in bodies:
        assert read(memory, body) == read(RequestMemory(), body)


def test_control_a_list_that_begins_alike_and_does_not_continue_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "_continues", bytes.startswith)
    memory = RequestMemory()
    assert [read(memory, body) for body in ("[1]", "[12]")] != [read(RequestMemory(), body) for body in ("[1]", "[12]")]


def test_a_conversation_that_continues_has_only_its_new_messages_read() -> None:
    memory, pieces = RequestMemory(), list[bytes]()

    class Counted(dict[bytes, Sequence[Said]]):
        def get(self, key: bytes, default: Any = None) -> Any:
            pieces.append(key)
            return super().get(key, default)

    memory._said = Counted()
    for body in ('["a", "b"]', '["x"]', '["a", "b" , "c"]', '["x","y"]', '["a","b"]'):
        assert read(memory, body) == read(RequestMemory(), body)
    assert pieces == [b'"a"', b'"b"', b'"x"', b'"c"', b'"y"', b'"a"', b'"b"']


class Tools(list[Tool]):
    """As `RequestMemory` holds them, and another that can be seen to be gone."""


def test_tools_and_openings_that_are_not_used_any_more_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A harness may send other tools, and another opening, with every request of an attempt."""
    monkeypatch.setattr(prompting, "_KEPT", 2)
    prompts, kept = PromptBuilder(Mock(), Mock()), [Tools([foreign({"name": name})]) for name in "abc"]
    held = [weakref.ref(tools) for tools in kept]
    openings = [[Said(role="system", text=name), Said(role="system", text="more")] for name in "abc"]
    first = prompts.canonical(openings[0])
    assert prompts.canonical(openings[0])[0] is first[0]
    told = [prompts.signature(tools) for tools in kept]
    assert [prompts.signature(tools) for tools in kept] == told  # the same again, though it was forgotten
    for opening in openings[1:]:
        prompts.canonical(opening)
    assert prompts.canonical(openings[0])[0] is not first[0]
    del kept
    assert [each() is None for each in held] == [True, False, False]


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


DEEP = "[" * 100_000 + "]" * 100_000
NESTED = "[" * 5000 + "]" * 5000


def asking(**raw: str) -> bytes:
    """A body, of values as JSON."""
    given = {"messages": f"[{json.dumps(HELLO)}]", **raw}
    return f"{{{', '.join(f'{json.dumps(name)}: {text}' for name, text in given.items())}}}".encode(
        errors="surrogateescape"
    )


@pytest.mark.anyio
@pytest.mark.parametrize(
    "raw",
    [
        {"metadata": DEEP},
        {"messages": '[{"role": "user", "content": ' + NESTED + "}]"},
        {"tools": '[{"function": {"name": "a", "parameters": {"a": ' + NESTED + "}}}]"},
        {
            "messages": '[{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "'
            + DEEP
            + '"}}]}]'
        },
        {"messages": '[{"role": "user", "content": "\udcff"}]'},
        {"stream": '"false"'},
        {"logprobs": '"no"'},
        {"model": '["policy"]'},
    ],
    ids=["metadata", "content", "schema", "arguments", "no UTF-8", "stream", "logprobs", "model"],
)
async def test_a_body_that_cannot_be_read_is_refused_and_no_fault_of_ours(door: Path, raw: Mapping[str, str]) -> None:
    async with attempt(door, ["Yes."]) as (made, client):
        answer = await client.post(CHAT, content=asking(**raw), headers=made.headers)
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
        assert (made.recording.failure, made.recording.turns) == (None, 0)


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [False, True])
async def test_what_fails_in_the_gateway_fails_the_attempt(
    door: Path, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A harness that gives up after a 500 would otherwise be scored, as if its policy had."""
    async with attempt(door, ["Yes."]) as (made, client):
        broken = ValueError("of ours")
        monkeypatch.setattr(made.renderer, "parse", Mock(side_effect=broken))
        answer = await client.post(CHAT, json={"messages": [HELLO], "stream": stream}, headers=made.headers)
        assert (answer.status_code, "ValueError" in answer.text) == (503, True)
        assert made.recording.failure is broken
        assert made.recording.over.is_set()
