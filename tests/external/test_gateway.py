"""What a harness asks over a chat API is recorded token by token, and what it gets is what the API promises."""

import asyncio
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prorl_mq.schema.messages import Sampling
from prorl_mq.schema.trajectory import check
from sandbox.lifetime import label
from tests.agent.chat import call
from tests.external.conftest import HELLO, TOOL, TOOLS, attempt
from workers.agent.result import LoopEnd
from workers.inference.protocol import ContextFull

pytestmark = pytest.mark.anyio
CHAT = "/v1/chat/completions"
LIST = call("bash", '{"command": "ls"}')
DONE = LoopEnd(reason="finish")


@pytest.fixture
def door() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:  # a short path: it becomes a socket's
        yield Path(name)


def result(of: dict[str, Any], text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": of["tool_calls"][0]["id"], "content": text}


def echoed(message: dict[str, Any]) -> dict[str, Any]:
    """An answer as clients send it back: with fields of their own, and arguments in another form."""
    calls = message.get("tool_calls") or []
    again = [{**each, "function": {**each["function"], "arguments": '{\n "command":"ls"}'}} for each in calls]
    return {**message, "content": message["content"], "function_call": None, **({"tool_calls": again} if again else {})}


async def test_a_conversation_becomes_one_segment_whose_prompts_continue_each_other(door: Path) -> None:
    async with attempt(door, [LIST, "It holds a.py."]) as (made, client):
        asked = {"messages": [HELLO], "tools": TOOLS}
        first = (await client.post(CHAT, json=asked, headers=made.headers)).json()["choices"][0]
        assert first["finish_reason"] == "tool_calls"
        assert first["message"]["tool_calls"][0]["function"] == {"name": "bash", "arguments": '{"command": "ls"}'}
        history = [HELLO, echoed(first["message"]), result(first["message"], "a.py")]
        second = (await client.post(CHAT, json={**asked, "messages": history}, headers=made.headers)).json()
        assert second["choices"][0]["message"]["content"] == "It holds a.py."
        trajectory = await made.recording.trajectory(DONE)
    assert trajectory is not None
    check(trajectory)
    assert (len(trajectory.segments), len(trajectory.turns), trajectory.breaks) == (1, 2, 0)
    one, two = made.policy.prompts
    sampled = list(trajectory.segments[0].response_ids)[: trajectory.turns[0].completion_tokens]
    assert two[: len(one) + len(sampled)] == one + sampled
    assert set(trajectory.segments[0].loss_mask) == {0, 1}
    assert second["usage"]["prompt_tokens"] == len(two)


async def test_a_socket_that_a_dead_worker_left_is_replaced(door: Path) -> None:
    """The next attempt has the same sandbox, and so the same door."""
    label.listen(door).close()
    async with attempt(door, ["One."]) as (made, client):
        assert (await client.post(CHAT, json={"messages": [HELLO]}, headers=made.headers)).status_code == 200


async def test_a_rewritten_history_forks_a_segment(door: Path) -> None:
    async with attempt(door, ["One.", "Two."]) as (made, client):
        first = (await client.post(CHAT, json={"messages": [HELLO]}, headers=made.headers)).json()
        said = first["choices"][0]["message"]
        rewritten = [HELLO, {**said, "content": "Uno."}, {"role": "user", "content": "And?"}]
        await client.post(CHAT, json={"messages": rewritten}, headers=made.headers)
        trajectory = await made.recording.trajectory(DONE)
    assert trajectory is not None
    check(trajectory)
    assert [segment.opened_by for segment in trajectory.segments] == ["start", "break"]


async def test_a_conversation_under_other_tools_is_another_one_and_the_first_goes_on(door: Path) -> None:
    """Their schemas are in its prompt: ids of the one would show the policy the tools of the other."""
    other = [{"type": "function", "function": {**TOOL, "name": "search"}}]
    async with attempt(door, ["One.", "Two.", "Three."]) as (made, client):
        first = (await client.post(CHAT, json={"messages": [HELLO], "tools": TOOLS}, headers=made.headers)).json()
        history = [HELLO, first["choices"][0]["message"], {"role": "user", "content": "And?"}]
        for tools in (other, TOOLS):
            await client.post(CHAT, json={"messages": history, "tools": tools}, headers=made.headers)
        trajectory = await made.recording.trajectory(DONE)
    one, two, three = map(tuple, made.policy.prompts)
    assert three[: len(one)] == one
    assert ['"search"' in made.renderer.text(each) for each in (one, two, three)] == [False, True, False]
    assert trajectory is not None
    check(trajectory)
    assert [sum(segment.loss_mask) for segment in trajectory.segments] == [
        sum(turn.completion_tokens for turn in trajectory.turns if turn.segment == number) for number in range(2)
    ]


async def test_the_same_request_again_asks_with_the_same_ids(door: Path) -> None:
    """A client that lost an answer asks again."""
    async with attempt(door, ["One.", "One again."]) as (made, client):
        for _ in range(2):
            await client.post(CHAT, json={"messages": [HELLO]}, headers=made.headers)
    assert made.policy.prompts[0] == made.policy.prompts[1]


async def test_two_conversations_at_once_each_go_on_from_their_own_ids(door: Path) -> None:
    """A harness may have agents of its own: going back to the first must not encode its answer again."""
    async with attempt(door, ["One.", "Other.", "Two."]) as (made, client):
        first = (await client.post(CHAT, json={"messages": [HELLO]}, headers=made.headers)).json()
        await client.post(CHAT, json={"messages": [{"role": "user", "content": "Else"}]}, headers=made.headers)
        said, more = first["choices"][0]["message"], {"role": "user", "content": "Continue"}
        await client.post(CHAT, json={"messages": [HELLO, said, more]}, headers=made.headers)
        trajectory = await made.recording.trajectory(DONE)
    one, _, third = made.policy.prompts
    assert trajectory is not None
    sampled = list(trajectory.segments[0].response_ids)[: trajectory.turns[0].completion_tokens]
    assert third[: len(one) + len(sampled)] == one + sampled
    check(trajectory)
    assert [segment.opened_by for segment in trajectory.segments] == ["start", "other"]
    assert [turn.segment for turn in trajectory.turns] == [0, 1, 0]


async def test_streams_say_what_whole_answers_say(door: Path) -> None:
    async with attempt(door, [LIST]) as (made, client):
        asked = {"messages": [HELLO], "tools": TOOLS, "stream": True, "stream_options": {"include_usage": True}}
        answer = await client.post(CHAT, json=asked, headers=made.headers)
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    chunks = [json.loads(line) for line in lines]
    assert chunks[0]["choices"][0]["delta"]["tool_calls"][0]["function"]["name"] == "bash"
    assert chunks[1]["choices"][0]["finish_reason"] == "tool_calls"
    assert chunks[2]["usage"]["completion_tokens"] > 0


@pytest.mark.parametrize("stream", [False, True])
async def test_anthropics_messages_are_recorded_as_one_conversation(door: Path, stream: bool) -> None:
    async with attempt(door, [LIST, "Done."]) as (made, client):
        headers = {"x-api-key": made.gateway.key}
        tools = [{"name": "bash", "description": "Runs", "input_schema": TOOL["parameters"]}]
        asked = {"messages": [HELLO], "system": "Be brief.", "tools": tools, "max_tokens": 500}
        first = (await client.post("/v1/messages", json=asked, headers=headers)).json()
        assert (first["stop_reason"], first["content"][0]["type"]) == ("tool_use", "tool_use")
        results = [{"type": "tool_result", "tool_use_id": first["content"][0]["id"], "content": "a.py"}]
        history = [HELLO, {"role": "assistant", "content": first["content"]}, {"role": "user", "content": results}]
        second = await client.post(
            "/v1/messages", json={**asked, "messages": history, "stream": stream}, headers=headers
        )
        trajectory = await made.recording.trajectory(DONE)
    assert "Done." in second.text
    assert ("message_stop" in second.text) == stream
    assert trajectory is not None
    assert (len(trajectory.segments), len(trajectory.turns)) == (1, 2)


async def test_a_key_dies_with_its_attempt(door: Path) -> None:
    async with attempt(door, ["One."]) as (made, client):
        wrong = await client.get("/v1/models", headers={"authorization": "Bearer wrong"})
        right = await client.get("/v1/models", headers=made.headers)
        made.gateway.revoke()
        late = await client.post(CHAT, json={"messages": [HELLO]}, headers=made.headers)
    assert (wrong.status_code, right.status_code, late.status_code) == (401, 200, 401)
    assert made.policy.prompts == []


async def test_a_limit_ends_the_rollout_and_is_told_as_one(door: Path) -> None:
    async with attempt(door, ["One.", "Two."], Sampling(max_turns=1)) as (made, client):
        await client.post(CHAT, json={"messages": [HELLO]}, headers=made.headers)
        refused = await client.post(CHAT, json={"messages": [HELLO]}, headers=made.headers)
        assert made.recording.over.is_set()
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "limit_reached")
    assert made.recording.stop == LoopEnd(reason="max_turns", truncated_by="turns")


@pytest.mark.parametrize("turns", [0, 1])
async def test_a_full_context_of_the_backend_ends_the_rollout_as_truncated(door: Path, turns: int) -> None:
    """It may be smaller than the job's; also a first prompt may fill it."""
    async with attempt(door, ["One."] * turns) as (made, client):
        answer = made.policy.generate

        async def small(*prompt: Any, **about: Any) -> Any:
            if not made.policy.texts:
                raise ContextFull("the prompt fills its context")
            return await answer(*prompt, **about)

        made.policy.generate = small  # type: ignore[method-assign]
        for _ in range(turns + 1):
            last = await client.post(CHAT, json={"messages": [HELLO]}, headers=made.headers)
        trajectory = await made.recording.trajectory(made.recording.stop or DONE)
    assert (last.status_code, last.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert trajectory is not None
    check(trajectory)
    assert (trajectory.truncated_by, len(trajectory.turns)) == ("context", turns)


async def test_a_client_that_goes_away_takes_its_completion_with_it(door: Path) -> None:
    async with attempt(door, []) as (made, client):
        entered, cancelled = asyncio.Event(), asyncio.Event()

        async def hang(*_: Any, **__: Any) -> None:
            entered.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        made.policy.generate = hang  # type: ignore[method-assign, assignment]
        asking = asyncio.create_task(client.post(CHAT, json={"messages": [HELLO]}, headers=made.headers))
        await entered.wait()
        asking.cancel()
        await cancelled.wait()


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "messages must be a list"),
        ({"messages": [HELLO], "n": 2}, "n must be 1"),
        ({"messages": [{"role": "king", "content": ""}]}, "no role 'king'"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "an image is not taken: it is neither a data: URL nor bytes",
        ),
        ({"messages": [HELLO], "tools": [{"type": "function"}]}, "a tool needs a name"),
    ],
)
async def test_a_wrong_request_is_told_what_is_wrong(door: Path, body: dict[str, Any], says: str) -> None:
    async with attempt(door, []) as (made, client):
        answer = await client.post(CHAT, json=body, headers=made.headers)
    assert answer.status_code == 400
    assert says in answer.json()["error"]["message"]
