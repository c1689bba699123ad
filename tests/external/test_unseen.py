"""Nothing passes an interceptor unseen, and what fails on its side is not held against the policy."""

import asyncio
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from prorl_mq.schema.messages import Sampling
from sandbox.lifetime import label
from sandbox.protocol import ProcessResult, Sandbox
from tests.agent.chat import ScriptedPolicy, tooled
from tests.external.conftest import HELLO, Attempt, attempt
from tests.external.test_interception import ASKED, CHAT, DONE, LIST, NO, READ, Guard, results, said
from workers.external import chat
from workers.external.harness import Harness
from workers.external.interception import ClientCall, End, Refuse
from workers.external.parameters import ROUTES
from workers.external.request import RequestMemory, parameters
from workers.external.running import run_external
from workers.handler import OtherModel

pytestmark = pytest.mark.anyio
SECRET, HIDDEN = "the secret", "[removed]"
Rewrite = Callable[[dict[str, Any], dict[str, Any]], None]  # of a call's message, and of its result


@pytest.fixture
def door() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


class Slow(Guard):
    """Answers when it is let."""

    def __init__(self, **answers: Any) -> None:
        super().__init__(**answers)
        self.asked, self.let, self.left = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def call(self, call: ClientCall) -> Refuse | End | None:
        await self._until_let()
        return await super().call(call)

    async def result(self, call: ClientCall, text: str) -> str | End | None:
        await self._until_let()
        return await super().result(call, text)

    async def _until_let(self) -> None:
        self.asked.set()
        try:
            await self.let.wait()
        except asyncio.CancelledError:
            self.left.set()
            raise


def read(made: Attempt) -> list[str]:
    return [made.renderer.text(each) for each in made.policy.prompts]


def without(_: dict[str, Any], result: dict[str, Any]) -> None:
    del result["tool_call_id"]


def renamed(call: dict[str, Any], result: dict[str, Any]) -> None:
    call["tool_calls"][0]["id"] = result["tool_call_id"] = "mine"


def invented(_: dict[str, Any], result: dict[str, Any]) -> None:
    """An id of this attempt, of a completion that it never had."""
    result["tool_call_id"] = result["tool_call_id"].replace("x0_", "x999_")


def endless(_: dict[str, Any], result: dict[str, Any]) -> None:
    result["tool_call_id"] = result["tool_call_id"].replace("x0_", f"x{'9' * 5000}_")


@pytest.mark.parametrize("rewrite", [without, renamed, invented, endless])
async def test_a_result_without_the_id_of_its_call_is_seen(door: Path, rewrite: Rewrite) -> None:
    guard = Guard(secret=HIDDEN)
    async with attempt(door, [LIST, "It.", "Done."], interceptor=guard) as (made, client):
        first = await said(made, client)
        [result] = results(first, SECRET)
        rewrite(first, result)
        second = await said(made, client, first, result)
        await said(made, client, first, result, second, HELLO)
        assert [SECRET in text for text in read(made)] == [False] * 3
        assert made.recording.failure is None
    assert [(each.turn, each.name, text) for each, text in guard.results] == [(0, "bash", SECRET)]


async def test_a_result_of_no_call_that_is_known_is_seen_as_such(door: Path) -> None:
    guard = Guard(secret=HIDDEN)
    async with attempt(door, ["Done."], interceptor=guard) as (made, client):
        call = {"id": "theirs", "type": "function", "function": {"name": "cat", "arguments": "{}"}}
        await said(made, client, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": SECRET})
        assert SECRET not in read(made)[0]
    assert [(each.turn, each.name) for each, _ in guard.results] == [(-1, "cat")]


async def test_a_result_that_comes_back_changed_is_seen_again(door: Path) -> None:
    async with attempt(door, [LIST, "It.", "Done."], interceptor=Guard(secret=HIDDEN)) as (made, client):
        first = await said(made, client)
        await said(made, client, first, *results(first, "still running"))
        await said(made, client, first, *results(first, SECRET))
        assert [SECRET in text for text in read(made)] == [False] * 3


async def test_a_result_that_two_requests_bring_at_once_is_judged_for_both(door: Path) -> None:
    slow = Slow(secret=HIDDEN)
    slow.let.set()
    async with attempt(door, [LIST, "It.", "Done."], interceptor=slow) as (made, client):
        first = await said(made, client)
        slow.let.clear()
        body = json.dumps({**ASKED, "messages": [HELLO, first, *results(first, SECRET)]}).encode()
        asked = chat.read(parameters(body, ROUTES[CHAT]), RequestMemory())
        both = [asyncio.ensure_future(made.recording.ask(asked.history, asked.tools)) for _ in range(2)]
        await asyncio.sleep(0)  # each has come as far as it does without an answer
        slow.let.set()
        await asyncio.gather(*both)
        assert [SECRET in text for text in read(made)] == [False] * 3
    assert len(slow.results) == 1


async def test_a_result_whose_client_left_before_it_was_judged_is_judged_when_it_comes_back(door: Path) -> None:
    slow = Slow(secret=HIDDEN)
    slow.let.set()
    async with attempt(door, [LIST, "It."], interceptor=slow) as (made, client):
        first = await said(made, client)
        slow.let.clear()
        slow.asked.clear()
        behind = [first, *results(first, SECRET)]
        leaving = asyncio.ensure_future(said(made, client, *behind))
        await slow.asked.wait()
        leaving.cancel()
        await slow.left.wait()
        slow.let.set()
        await said(made, client, *behind)
        assert [SECRET in text for text in read(made)] == [False] * 2


async def test_an_answer_whose_client_left_before_it_was_judged_is_not_trained(door: Path) -> None:
    slow = Slow(answer=Refuse(NO))
    async with attempt(door, [READ, READ, "It."], interceptor=slow) as (made, client):
        leaving = asyncio.ensure_future(said(made, client))
        await slow.asked.wait()
        leaving.cancel()
        await slow.left.wait()
        slow.let.set()
        assert "tool_calls" not in await said(made, client)
        found = await made.recording.trajectory(DONE)
    assert found is not None
    assert [turn.left_out for turn in found.turns] == ["unread", "", ""]


@pytest.mark.parametrize("declared", [True, False])
async def test_calls_of_other_models_are_seen(door: Path, declared: bool) -> None:
    guard, renderer = Guard(answer=Refuse(NO)), tooled()
    others = {"critic": OtherModel(ScriptedPolicy(renderer, [READ, "No."]), renderer)} if declared else {}
    async with attempt(door, [READ, "No."], interceptor=guard, others=others) as (made, client):
        answer = await client.post(CHAT, json={**ASKED, "model": "critic"}, headers=made.headers)
        assert answer.json()["choices"][0]["message"]["content"] == "No."
    assert [each.model for each in guard.calls] == ["critic" if declared else ""]


@pytest.mark.parametrize(("by", "answer"), [("call", "No!"), ("call", True), ("result", Refuse(NO)), ("result", {})])
async def test_an_answer_that_means_nothing_fails_the_attempt(door: Path, by: str, answer: Any) -> None:
    class Wrong(Guard):
        async def call(self, call: ClientCall) -> Any:
            return answer if by == "call" else None

        async def result(self, call: ClientCall, text: str) -> Any:
            return answer

    async with attempt(door, [LIST, "It."], interceptor=Wrong()) as (made, client):
        got = await client.post(CHAT, json=ASKED, headers=made.headers)
        if by == "result":
            first = got.json()["choices"][0]["message"]
            body = {**ASKED, "messages": [HELLO, first, *results(first, "a")]}
            got = await client.post(CHAT, json=body, headers=made.headers)
        assert got.status_code == 503
        assert f"{by}() returned" in str(made.recording.failure)


class Box:
    """A sandbox whose harness asks once and waits for the answer."""

    def __init__(self, door: Path) -> None:
        self.handle = SimpleNamespace(door=str(door))

    async def run(self, _: Any, *, stdin: bytes, timeout_s: float) -> ProcessResult:
        del timeout_s
        key = json.loads(stdin)["fill"]["{key}"]
        transport = httpx.AsyncHTTPTransport(uds=f"{self.handle.door}/{label.SOCKET}")
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway", timeout=60) as client:
            await client.post(CHAT, json=ASKED, headers={"x-api-key": key})
        return ProcessResult(exit_code=0, stdout=b"", stderr=b"")

    async def interrupt(self) -> None: ...


@pytest.mark.parametrize("silent", [True, False])
async def test_time_that_an_interceptor_spends_is_not_the_policys(door: Path, silent: bool) -> None:
    renderer, slow = tooled(), Slow()
    if not silent:
        slow.let.set()
    begun = run_external(
        harness=Harness(argv=["true"]),
        task="",
        workdir="/",
        policy=ScriptedPolicy(renderer, [LIST]),
        renderer=renderer,
        sandbox=cast("Sandbox", Box(door)),
        sampling=Sampling(),
        sample="task:0",
        deadline=asyncio.get_running_loop().time() + (1 if silent else 60),
        interceptor=slow,
    )
    if not silent:
        assert (await begun).stop == DONE
        return
    with pytest.raises(TimeoutError, match="the interceptor Slow did not answer"):
        await begun
