"""A task family sees tool calls before the harness does, and results before the policy does."""

import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from prorl_mq.schema.messages import Sampling
from prorl_mq.schema.trajectory import Trajectory, check
from tests.agent.chat import call
from tests.external.conftest import HELLO, TOOL, TOOLS, Attempt, attempt
from workers.agent.result import LoopEnd
from workers.external.interception import NOT_RUN, ClientCall, End, Refuse

pytestmark = pytest.mark.anyio
CHAT = "/v1/chat/completions"
ASKED: dict[str, Any] = {"messages": [HELLO], "tools": TOOLS}
DONE = LoopEnd(reason="finish")
LIST, READ = call("bash", '{"command": "ls"}'), call("bash", '{"command": "cat answer"}')
NO = "It is not allowed to read the answer."
ASKS: Mapping[str, Mapping[str, Any]] = {
    CHAT: ASKED,
    "/v1/messages": {
        "messages": [HELLO],
        "max_tokens": 100,
        "tools": [{"name": "bash", "input_schema": TOOL["parameters"]}],
    },
    "/v1/responses": {"input": "Hello", "tools": [{"type": "function", **TOOL}]},
}


class Guard:
    """Answers by what is in a call, or in a result."""

    def __init__(self, **answers: Refuse | End | Exception | str) -> None:
        self.answers = answers
        self.calls: list[ClientCall] = []
        self.results: list[tuple[ClientCall, str]] = []

    async def call(self, call: ClientCall) -> Refuse | End | None:
        self.calls.append(call)
        found = self._found(call.arguments)
        assert not isinstance(found, str)
        return found

    async def result(self, call: ClientCall, text: str) -> str | End | None:
        self.results.append((call, text))
        found = self._found(text)
        assert not isinstance(found, Refuse)
        return found

    def _found(self, text: str) -> Refuse | End | str | None:
        found = next((answer for word, answer in self.answers.items() if word in text), None)
        if isinstance(found, Exception):
            raise found
        return found


@pytest.fixture
def door() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


async def said(made: Attempt, client: httpx.AsyncClient, *behind: Mapping[str, Any]) -> dict[str, Any]:
    body = {**ASKED, "messages": [HELLO, *behind]}
    answer = await client.post(CHAT, json=body, headers=made.headers)
    found: dict[str, Any] = answer.json()["choices"][0]["message"]
    return found


def results(of: Mapping[str, Any], *texts: str) -> list[dict[str, Any]]:
    calls = of["tool_calls"]
    return [
        {"role": "tool", "tool_call_id": each["id"], "content": text} for each, text in zip(calls, texts, strict=True)
    ]


async def recorded(made: Attempt) -> Trajectory:
    """Whose trained tokens are all that was sampled."""
    found = await made.recording.trajectory(DONE)
    assert found is not None
    check(found)
    trained = sum(sum(segment.loss_mask) for segment in found.segments)
    assert trained == sum(turn.completion_tokens for turn in found.turns)
    return found


@pytest.mark.parametrize("guarded", [True, False])
async def test_a_refused_call_reaches_the_policy_as_a_refusal_and_the_harness_not_at_all(
    door: Path, guarded: bool
) -> None:
    guard = Guard(answer=Refuse(NO))
    async with attempt(door, [READ, LIST, "Done."], interceptor=guard if guarded else None) as (made, client):
        first = await said(made, client)
        assert ("answer" in json.dumps(first["tool_calls"])) == (not guarded)
        if not guarded:
            return
        assert (await said(made, client, first, *results(first, "a.py")))["content"] == "Done."
        found = await recorded(made)
    assert len(found.segments) == 1, "each prompt continues the one before"
    assert [turn.client_calls for turn in found.turns] == [
        (("bash", '{"command": "cat answer"}'),), (("bash", '{"command": "ls"}'),), (),
    ]  # fmt: skip
    assert [[each.content for each in turn.following] for turn in found.turns] == [[NO], ["a.py"], []]
    assert [(each.turn, each.name, text) for each, text in guard.results] == [(1, "bash", "a.py")]
    text = made.renderer.text(made.policy.prompts[-1])
    assert text.index("cat answer") < text.index(NO) < text.index("a.py")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", ASKS)
async def test_no_wire_tells_of_a_refused_call(door: Path, route: str, stream: bool) -> None:
    async with attempt(door, [READ, "I may not."], interceptor=Guard(answer=Refuse(NO))) as (made, client):
        answer = await client.post(route, json={**ASKS[route], "stream": stream}, headers=made.headers)
        assert (answer.status_code, "cat answer" in answer.text, "I may not." in answer.text) == (200, False, True)
        assert len((await recorded(made)).turns) == 2


async def test_of_an_answer_with_a_refused_call_no_call_is_run(door: Path) -> None:
    async with attempt(door, [f"{LIST}\n{READ}", "Done."], interceptor=Guard(answer=Refuse(NO))) as (made, client):
        assert "tool_calls" not in await said(made, client)
        [first, _] = (await recorded(made)).turns
    assert [each.content for each in first.following] == [NOT_RUN, NO]


@pytest.mark.parametrize("guarded", [True, False])
async def test_a_text_stands_for_a_result_from_then_on(door: Path, guarded: bool) -> None:
    guard = Guard(secret="[removed]") if guarded else None
    async with attempt(door, [LIST, LIST, "Done.", "It."], interceptor=guard) as (made, client):
        first = await said(made, client)
        behind = [first, *results(first, "the secret")]
        second = await said(made, client, *behind)
        await said(made, client, *behind, second, *results(second, "a.py"))
        await said(made, client, {"role": "user", "content": "What?"}, *behind)  # a history of which all is rendered
        texts = [made.renderer.text(each) for each in made.policy.prompts[1:]]
    assert [("the secret" in text, "[removed]" in text) for text in texts] == [(not guarded, guarded)] * 3
    assert guard is None or [text for _, text in guard.results] == ["the secret", "a.py"], "each is judged once"


@pytest.mark.parametrize("by", ["call", "result"])
async def test_a_rollout_is_ended_with_a_reason(door: Path, by: str) -> None:
    word = "answer" if by == "call" else "secret"
    async with attempt(door, [READ if by == "call" else LIST], interceptor=Guard(**{word: End("it cheats")})) as (
        made, client,
    ):  # fmt: skip
        behind: list[dict[str, Any]] = []
        if by == "result":
            first = await said(made, client)
            behind = [first, *results(first, "the secret")]
        answer = await client.post(CHAT, json={**ASKED, "messages": [HELLO, *behind]}, headers=made.headers)
        assert (answer.status_code, answer.json()["error"]["message"]) == (
            403, "this rollout is over: intercepted: it cheats",
        )  # fmt: skip
        assert made.recording.over.is_set()
        assert made.recording.stop == LoopEnd(reason="intercepted: it cheats")
        assert len((await recorded(made)).turns) == 1


async def test_what_an_interceptor_raises_is_the_attempts_failure(door: Path) -> None:
    error = ValueError("of the family")
    async with attempt(door, [READ], interceptor=Guard(answer=error)) as (made, client):
        answer = await client.post(CHAT, json=ASKED, headers=made.headers)
        assert (answer.status_code, "task family" in answer.text, "of the family" in answer.text) == (503, True, False)
        assert made.recording.failure is error
        assert made.recording.over.is_set()


async def test_refusals_count_as_turns(door: Path) -> None:
    limits = Sampling(max_turns=3)
    async with attempt(door, [READ] * 3, limits, Guard(answer=Refuse(NO))) as (made, client):
        answer = await client.post(CHAT, json=ASKED, headers=made.headers)
        assert (answer.status_code, made.recording.stop) == (403, LoopEnd(reason="max_turns", truncated_by="turns"))
        assert len((await recorded(made)).turns) == 3
