"""Each API takes what its harnesses send, tells answers in its own form, and refuses by name what cannot be had."""

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from prorl_mq.schema.messages import Sampling
from prorl_mq.schema.trajectory import Trajectory, check
from tests.agent.chat import call
from tests.external.conftest import HELLO, TOOL, Attempt, attempt
from workers.agent.result import LoopEnd
from workers.external import gateway
from workers.external.parameters import ROUTES, page

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[2]
THOUGHT = "<think>\nhm\n</think>\n\n"
LIST = call("bash", '{"command": "ls"}')
FUNCTION = {"type": "function", **TOOL}
SCHEMA = {"name": "bash", "description": "Runs", "input_schema": TOOL["parameters"]}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [HELLO]},
    "/v1/messages": {"messages": [HELLO], "max_tokens": 100},
    "/v1/responses": {"input": [{"type": "message", "role": "user", "content": "Hello"}]},
    "/v1/completions": {"prompt": "Hello"},
}


@pytest.fixture
def door() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:  # a short path: it becomes a socket's
        yield Path(name)


async def recorded(made: Attempt) -> Trajectory:
    found = await made.recording.trajectory(LoopEnd(reason="finish"))
    assert found is not None
    check(found)
    return found


def clients(made: Attempt, client: httpx.AsyncClient, door: Path) -> tuple[Any, Any]:
    """OpenAI's and Anthropic's own, where they are installed."""
    openai, anthropic = pytest.importorskip("openai"), pytest.importorskip("anthropic")
    httpx2 = pytest.importorskip("httpx2")
    key, transport = made.gateway.key, httpx2.AsyncHTTPTransport(uds=str(door / "socket"))
    other = httpx2.AsyncClient(transport=transport)
    return (
        openai.AsyncOpenAI(api_key=key, base_url="http://gateway/v1", http_client=client, max_retries=0),
        anthropic.AsyncAnthropic(api_key=key, base_url="http://gateway", http_client=other, max_retries=0),
    )


def claudes(messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """A request with all that Claude Code sends."""
    return {
        "model": "policy",
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cch=1"},
            {"type": "text", "text": "You help.", "cache_control": {"type": "ephemeral"}},
        ],
        "messages": messages,
        "tools": [SCHEMA],
        "max_tokens": 32000,
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "metadata": {"user_id": "u"},
        **more,
    }


async def test_claude_codes_requests_are_one_conversation(door: Path) -> None:
    """System messages anywhere, blocks that become strings, marks of caches that move, thoughts that come back."""
    async with attempt(door, [THOUGHT + LIST, "Done.", "Bye."]) as (made, client):
        headers = {"x-api-key": made.gateway.key}
        asked = {"role": "user", "content": [{"type": "text", "text": "Go", "cache_control": {"type": "ephemeral"}}]}
        note = {"role": "system", "content": "Today is Monday."}
        first = (await client.post("/v1/messages?beta=true", json=claudes([asked, note]), headers=headers)).json()
        assert [block["type"] for block in first["content"]] == ["thinking", "tool_use"]
        result = {"type": "tool_result", "tool_use_id": first["content"][1]["id"], "content": "a.py"}
        history = [
            {"role": "user", "content": "Go"},
            note,
            {"role": "assistant", "content": first["content"]},
            {"role": "user", "content": [result]},
            {"role": "system", "content": "A reminder."},
        ]
        second = (await client.post("/v1/messages", json=claudes(history), headers=headers)).json()
        history += [{"role": "assistant", "content": second["content"]}, {"role": "user", "content": "And?"}]
        streamed = await client.post("/v1/messages", json=claudes(history, stream=True), headers=headers)
        trajectory = await recorded(made)
    assert "Bye." in streamed.text
    assert "message_stop" in streamed.text
    [segment] = trajectory.segments
    assert segment.keeps_thinking
    text = made.renderer.text([*segment.prompt_ids, *segment.response_ids])
    assert "billing" not in text
    spoken = ("You help.", "Go", "Today is Monday.", "hm", "a.py", "A reminder.", "Done.", "And?", "Bye.")
    places = [text.index(said) for said in spoken]  # where they were sent, system messages too
    assert (places, text.count("A reminder.")) == (sorted(places), 1)
    assert trajectory.turns[1].prompt_tokens == second["usage"]["input_tokens"]


def codexs(items: list[dict[str, Any]]) -> dict[str, Any]:
    """A request with all that Codex sends."""
    return {
        "model": "policy",
        "input": items,
        "tools": [
            FUNCTION,
            {"type": "custom", "name": "apply_patch", "description": "A patch", "format": {"type": "grammar"}},
            {"type": "namespace", "name": "multi_agent_v1", "tools": [{**FUNCTION, "name": "spawn_agent"}]},
            {"type": "web_search"},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "k",
        "client_metadata": {"a": "b"},
    }


def told(text: str) -> list[dict[str, Any]]:
    """The events of a stream of the Responses API."""
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]


async def test_codexs_items_are_one_conversation(door: Path) -> None:
    """Functions, a custom tool and one of a namespace; reasoning, and calls that come back as items of their own."""
    patch = call("apply_patch", '{"input": "*** Begin"}')
    texts = [THOUGHT + "I look.\n" + LIST, patch + "\n" + call("spawn_agent", '{"command": "x"}'), "Done."]
    async with attempt(door, texts) as (made, client):
        items: list[dict[str, Any]] = [
            {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}
            for role, text in (("developer", "One."), ("developer", "Two."), ("user", "Context."), ("user", "Go."))
        ]
        turns = []
        for _ in texts:
            answer = await client.post("/v1/responses", json=codexs(items), headers=made.headers)
            events = told(answer.text)
            assert [event["sequence_number"] for event in events] == list(range(len(events)))
            assert (events[0]["type"], events[-1]["type"]) == ("response.created", "response.completed")
            done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
            assert events[-1]["response"]["output"] == done
            turns.append(done)
            items += [{**item, "status": None} for item in done]
            for item in done:
                if "call_id" in item:
                    kind = item["type"].replace("_tool_call", "_tool_call_output").replace("n_call", "n_call_output")
                    items.append({"type": kind, "call_id": item["call_id"], "output": "ok"})
        trajectory = await recorded(made)
    assert [[item["type"] for item in done] for done in turns] == [
        ["reasoning", "message", "function_call"],
        ["custom_tool_call", "function_call"],
        ["message"],
    ]
    assert turns[1][0]["input"] == "*** Begin"
    assert (turns[1][1]["name"], turns[1][1]["namespace"]) == ("spawn_agent", "multi_agent_v1")
    assert len(trajectory.segments) == 1
    assert "One.\n\nTwo." in made.renderer.text(made.policy.prompts[0])


async def test_the_clients_of_the_apis_read_what_is_answered(door: Path) -> None:
    async with attempt(door, [LIST] * 4 + ["Plain."] * 2) as (made, client):
        theirs, claude = clients(made, client, door)
        responses, messages, plain = theirs.responses, claude.messages, theirs.completions
        asked: dict[str, Any] = {"model": "policy", "max_tokens": 99, "messages": [HELLO], "tools": [SCHEMA]}
        async with responses.stream(model="policy", input="Go", tools=[{**FUNCTION, "strict": True}]) as events:
            found = [await events.get_final_response()]
        found.append(await responses.create(model="policy", input="Go", tools=[{**FUNCTION, "strict": True}]))
        async with messages.stream(**asked) as pieces:
            told = [await pieces.get_final_message()]
        told.append(await messages.create(**asked))
        texts = [each.choices[0].text async for each in await plain.create(model="p", prompt="A", stream=True)]
        texts.append((await plain.create(model="p", prompt="A")).choices[0].text)
        await recorded(made)
    calls = [json.loads(each.output[0].arguments) for each in found if each.output[0].type == "function_call"]
    assert calls == [{"command": "ls"}] * 2
    assert [(each.stop_reason, each.content[0].type) for each in told] == [("tool_use", "tool_use")] * 2
    assert texts == ["Plain."] * 2
    assert made.policy.prompts[-1] == made.renderer.ids("A")


async def test_a_stop_text_cuts_the_record_too(door: Path) -> None:
    async with attempt(door, ["Thought: x\nObservation: y", "Next."]) as (made, client):
        asked = {"messages": [HELLO], "stop": ["Observation:"], "logprobs": True}
        first = (await client.post("/v1/chat/completions", json=asked, headers=made.headers)).json()["choices"][0]
        assert (first["message"]["content"], first["finish_reason"]) == ("Thought: x", "stop")
        assert "".join(each["token"] for each in first["logprobs"]["content"]) == "Thought: x\nObservation:"
        history = [HELLO, first["message"], {"role": "user", "content": "Observation: z"}]
        await client.post("/v1/chat/completions", json={"messages": history}, headers=made.headers)
        trajectory = await recorded(made)
    assert len(trajectory.segments) == 1
    assert made.renderer.text(made.policy.prompts[1]).count("y") == 0


async def test_a_stop_text_that_the_last_token_completes_ends_the_completion(door: Path) -> None:
    async with attempt(door, ["One, two"] * 2) as (made, client):
        asked = {"messages": [HELLO], "stop": ["One"]}
        for room, finish in ((2, "length"), (3, "stop")):  # tokens of one byte
            body = asked | {"max_tokens": room}
            answer = await client.post("/v1/chat/completions", json=body, headers=made.headers)
            assert answer.json()["choices"][0]["finish_reason"] == finish


async def test_the_small_model_is_answered_and_not_trained(door: Path) -> None:
    async with attempt(door, ["A title", "One."]) as (made, client):
        for model in ("policy-small", "policy"):
            body = {"model": model, "messages": [HELLO]}
            await client.post("/v1/chat/completions", json=body, headers=made.headers)
        trajectory = await recorded(made)
    assert [turn.left_out for turn in trajectory.turns] == ["side", ""]
    assert [sum(segment.loss_mask) > 0 for segment in trajectory.segments] == [False, True]


@pytest.mark.parametrize("route", ROUTES)
async def test_each_parameter_is_taken_or_refused_by_its_name(door: Path, route: str) -> None:
    """What the table says is what a request gets; a name that is in no table is refused with the nearest."""
    async with attempt(door, ["One."] * 99) as (made, client):

        async def status(**more: Any) -> tuple[int, str]:
            answer = await client.post(route, json=BODIES[route] | more, headers=made.headers)
            return answer.status_code, answer.text

        for name, rule in ROUTES[route].items():
            if rule.only is not None:
                refused = await status(**{name: {"wombat": 1}})
                assert refused[0] == 400, name
                assert name in refused[1]
                for value in rule.only:
                    if not isinstance(value, dict) or value:
                        assert (await status(**{name: value}))[0] == 200, (name, value)
            elif rule.does == "no effect":
                assert (await status(**{name: {"wombat": 1}}))[0] == 200, name
        unknown = await status(temperatur=1)
    assert unknown[0] == 400
    assert "no parameter 'temperatur' here (did you mean 'temperature'?" in unknown[1]


@pytest.mark.parametrize(
    ("route", "body", "says"),
    [
        ("/v1/chat/completions", {"tool_choice": "required"}, "tool_choice"),
        ("/v1/chat/completions", {"response_format": {"type": "json_object"}}, "response_format"),
        ("/v1/chat/completions", {"stop": [""]}, "stop must be a text"),
        ("/v1/messages", {"tool_choice": {"type": "any"}}, "tool_choice 'any' is refused"),
        ("/v1/messages", {"tools": [{"type": "web_search", "name": "w"}]}, "the tool 'w' is one that a service"),
        ("/v1/responses", {"text": {"format": {"type": "json_schema"}}}, "text.format is refused"),
        ("/v1/responses", {"previous_response_id": "resp_1"}, "previous_response_id"),
        ("/v1/responses", {"input": [{"type": "computer_call"}]}, "an item of type 'computer_call'"),
        ("/v1/completions", {"prompt": ["a", "b"]}, "prompt must be one text"),
        ("/v1/chat/completions", {"tools": ["x"]}, "wrong type (AttributeError: 'str' object has no attribute 'get')"),
        ("/v1/chat/completions", {"stream_options": "x"}, "a value in the body has the wrong type"),
        ("/v1/messages", {"system": ["x"]}, "a value in the body has the wrong type"),
        ("/v1/messages", {"tools": 1}, "a value in the body has the wrong type"),
        ("/v1/responses", {"tools": [{"type": "custom"}, 1]}, "a tool needs a name"),
        ("/v1/responses", {"text": "x"}, "a value in the body has the wrong type"),
        ("/v1/completions", {"prompt": [2**63]}, "prompt must be one text"),
        ("/v1/completions", {"prompt": [True, 1]}, "prompt must be one text"),
        ("/v1/completions", {"prompt": [1, 2**31 - 1]}, "prompt has the id 2147483647: the vocabulary ends with"),
    ],
)
async def test_it_is_refused_by_name(door: Path, route: str, body: dict[str, Any], says: str) -> None:
    async with attempt(door, []) as (made, client):
        answer = await client.post(route, json=BODIES[route] | body, headers=made.headers)
    assert answer.status_code == 400
    assert says in answer.json()["error"]["message"]


def test_the_reference_has_the_tables_of_the_code() -> None:
    assert page() in (ROOT / "docs/reference/gateway.md").read_text()


@pytest.mark.parametrize(("route", "status"), [("/v1/responses", 400), ("/v1/messages", 403), ("/v1/completions", 403)])
async def test_a_limit_is_told_so_that_its_harness_ends(door: Path, route: str, status: int) -> None:
    async with attempt(door, ["One."], Sampling(max_turns=1)) as (made, client):
        for _ in range(2):
            last = await client.post(route, json=BODIES[route], headers=made.headers)
    assert (last.status_code, last.json()["error"]["code"]) == (status, "limit_reached")


@pytest.mark.parametrize("route", ROUTES)
async def test_a_stream_that_waits_is_open_and_ends_with_its_answer(
    door: Path, route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "OPENS_S", 0.0)
    monkeypatch.setattr(gateway, "BEATS_S", 0.01)
    async with attempt(door, ["One."]) as (made, client):
        answer, opened = made.policy.generate, asyncio.Event()

        async def late(*prompt: Any, **about: Any) -> Any:
            await opened.wait()
            return await answer(*prompt, **about)

        made.policy.generate = late  # type: ignore[method-assign]
        body = BODIES[route] | {"stream": True}
        async with client.stream("POST", route, json=body, headers=made.headers) as stream:
            pieces: AsyncIterator[str] = stream.aiter_text()
            beats = await anext(pieces) + await anext(pieces)
            opened.set()
            rest = "".join([piece async for piece in pieces])
    assert "One." not in beats
    assert "One." in rest
    if route == "/v1/responses":  # whose client wants it created first, and once
        events = told(beats + rest)
        assert [event["type"] for event in events].index("response.in_progress") == 1
        assert [event["type"] for event in events].count("response.created") == 1
        assert [event["sequence_number"] for event in events] == list(range(len(events)))


async def test_openais_client_reads_a_stream_that_opens_late(door: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "OPENS_S", 0.0)
    async with attempt(door, ["One."]) as (made, client):
        responses = clients(made, client, door)[0].responses
        async with responses.stream(model="policy", input="Go") as events:
            found = await events.get_final_response()
    assert found.output_text == "One."


async def test_who_hangs_up_on_a_stream_has_not_read_it(door: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sampling is cancelled with it."""
    monkeypatch.setattr(gateway, "OPENS_S", 0.0)
    async with attempt(door, []) as (made, client):
        entered, cancelled = asyncio.Event(), asyncio.Event()

        async def hang(*_: Any, **__: Any) -> None:
            entered.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        made.policy.generate = hang  # type: ignore[method-assign, assignment]
        body = BODIES["/v1/messages"] | {"stream": True}
        async with client.stream("POST", "/v1/messages", json=body, headers=made.headers) as stream:
            pieces = stream.aiter_text()
            await anext(pieces)
            await entered.wait()
        await cancelled.wait()
