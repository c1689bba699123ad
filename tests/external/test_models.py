"""A harness asks models of other pools by name: each is sampled by its own, recorded, and not trained."""

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from prorl_mq.converters.rollout import Rollout, completions, rollout
from prorl_mq.errors import NotTrainable
from prorl_mq.schema.messages import Outcome, SampleRecord, Sampling
from prorl_mq.schema.trajectory import check
from tests.agent.chat import ScriptedPolicy, tooled
from tests.external.conftest import HELLO, Attempt, attempt
from tests.external.test_wires import BODIES, ROUTES
from workers.agent.result import LoopEnd
from workers.external.gateway import WIRES
from workers.external.request import Request
from workers.handler import OtherModel
from workers.handlers.harbor.row import TaskRow
from workers.handlers.rows import BadRow, fitting
from workers.handlers.swe.rows import SweTask
from workers.inference.protocol import InferenceError

pytestmark = pytest.mark.anyio
CHAT = "/v1/chat/completions"
DONE = LoopEnd(reason="finish")
NAMES = ("policy", "policy-small", "critic")


@pytest.fixture
def door() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


class Lost:
    """A model of a pool that fails."""

    async def generate(self, *_: Any, **__: Any) -> Any:
        raise InferenceError("no backend of the critic's answers")


def critic(*texts: str) -> OtherModel:
    renderer = tooled()
    return OtherModel(ScriptedPolicy(renderer, list(texts)), renderer)


async def asked(made: Attempt, client: httpx.AsyncClient, model: str, *messages: Any) -> httpx.Response:
    return await client.post(CHAT, json={"model": model, "messages": list(messages)}, headers=made.headers)


def said(answer: httpx.Response) -> Any:
    return answer.json()["choices"][0]["message"]


@pytest.mark.parametrize("declared", [True, False])
async def test_each_model_is_sampled_by_its_own_pool_and_one_is_trained(door: Path, declared: bool) -> None:
    """The control: a name that nobody has declared is the policy's."""
    other = critic("No.", "Yes.")
    others = {"critic": other} if declared else {}
    async with attempt(door, ["One.", "Two.", "Three.", "Four."], others=others) as (made, client):
        first = said(await asked(made, client, "policy", HELLO))
        judged = said(await asked(made, client, "critic", {"role": "user", "content": first["content"]}))
        assert judged["content"] == ("No." if declared else "Two.")
        more = {"role": "user", "content": judged["content"]}
        second = said(await asked(made, client, "policy", HELLO, first, more))
        again = await asked(made, client, "critic", {"role": "user", "content": first["content"]}, judged, HELLO)
        assert said(again)["content"] == ("Yes." if declared else "Four.")
        listed = (await client.get("/v1/models", headers=made.headers)).json()["data"]
        found = await made.recording.trajectory(DONE)
    assert found is not None
    check(found)
    assert [each["id"] for each in listed] == ["policy", "policy-small", *others]
    if not declared:
        assert {turn.model for turn in found.turns} == {""}
        return
    assert [(turn.model, turn.left_out, turn.content) for turn in found.turns] == [
        ("", "", first["content"]), ("", "", second["content"]),
        ("critic", "side", "No."), ("critic", "side", "Yes."),
    ]  # fmt: skip
    assert [any(segment.loss_mask) for segment in found.segments] == [True, False]
    policy: Any = other.policy
    assert list(found.segments[1].prompt_ids) == policy.prompts[0]
    ids = [*found.segments[1].prompt_ids, *found.segments[1].response_ids]
    assert ids[: len(policy.prompts[1])] == policy.prompts[1], "its conversation continues, too"
    assert len(made.policy.prompts) == 2, "the policy was asked for its own alone"


@pytest.mark.parametrize("trained", [True, False])
async def test_two_policies_are_trained_from_one_episode(door: Path, trained: bool) -> None:
    """Each on what it sampled itself, behind what it was sent. The control: one that the task does not train."""
    other = critic("No.", "Yes.", "Superseded.")._replace(trained=trained)
    async with attempt(door, ["One.", "Two.", "A title"], others={"critic": other}) as (made, client):
        for model in ("policy", "critic"):
            first = said(await asked(made, client, model, HELLO))
            await asked(made, client, model, HELLO, first, HELLO)
        await asked(made, client, "policy-small", HELLO)
        await asked(made, client, "critic", HELLO)  # the same again: a row of its own, which nothing continues
        found = await made.recording.trajectory(DONE)
    assert found is not None
    check(found)
    policy = rollout("t", SampleRecord(job_id="r:g:0", index=0, outcome=Outcome.COMPLETED, reward=1.0), found)
    assert tokens(made.renderer, policy) == ["One.", "Two."]
    assert [each.left_out for each in found.turns if each.model] == (
        ["", "", "superseded"] if trained else ["side"] * 3
    )
    if not trained:
        with pytest.raises(NotTrainable, match="no token that model 'critic' is trained on"):
            policy.of("critic")
        return
    ours: Any = other.policy
    assert tokens(other.renderer, policy.of("critic")) == ["No.", "Yes."]
    assert [each.prompt_ids for each in completions(policy.of("critic"))] == ours.prompts[:2]


def tokens(renderer: Any, found: Rollout) -> list[str]:
    return [renderer.parse(each.ids).text for each in completions(found)]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", ROUTES)
async def test_an_answer_tells_the_model_that_has_given_it(door: Path, route: str, stream: bool) -> None:
    """Under another name the policy answers, and says so."""
    body = BODIES[route] | {"stream": stream}
    async with attempt(door, ["One."] * 3, others={"critic": critic("No.")}) as (made, client):
        for model, answers in {**{name: name for name in NAMES}, "gpt-9": "policy"}.items():
            answer = await client.post(route, json=body | {"model": model}, headers=made.headers)
            assert set(re.findall(r'"model": "([^"]*)"', answer.text)) == {answers}


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/responses", "/v1/completions"])
def test_a_stream_that_waits_tells_the_model_too(route: str) -> None:
    asked = Request(history=(), model="critic")
    assert '"model": "critic"' in WIRES[route].heartbeat(asked, 0, 0)


async def test_one_model_is_looked_up_as_clients_do_and_a_route_that_is_not_served_is_named(door: Path) -> None:
    """Claude Code asks for counts of tokens, an agent may ask for embeddings: they hear what is there."""
    async with attempt(door, [], others={"org/critic": critic()}) as (made, client):
        for name in ("policy", "org/critic"):
            found = await client.get(f"/v1/models/{name}", headers=made.headers)
            assert (found.status_code, found.json()["id"]) == (200, name)
        other = await client.get("/v1/models/gpt-9", headers=made.headers)
        assert (other.status_code, other.json()["error"]["message"]) == (
            404, "there is no model 'gpt-9': policy, policy-small, org/critic",
        )  # fmt: skip
        assert (await client.get("/v1/models/gpt-9")).status_code == 401
        for method, route in (("POST", "/v1/embeddings"), ("GET", CHAT), ("POST", "/v1/messages/count_tokens")):
            lost = await client.request(method, route, headers=made.headers)
            assert lost.status_code == 404
            assert lost.json()["error"]["message"].startswith(f"{method} {route} is not served here. Send POST to /v1/")


async def test_a_model_that_cannot_be_asked_fails_the_attempt(door: Path) -> None:
    others = {"critic": OtherModel(Lost(), tooled())}
    async with attempt(door, ["One."], others=others) as (made, client):
        assert (await asked(made, client, "critic", HELLO)).status_code == 503
        assert made.recording.over.is_set()
        assert isinstance(made.recording.failure, InferenceError)


async def test_each_model_has_the_limits_for_itself_and_ends_the_rollout_at_them(door: Path) -> None:
    async with attempt(door, ["One."], Sampling(max_turns=1), others={"critic": critic("No.", "No.")}) as (
        made,
        client,
    ):
        assert (await asked(made, client, "policy", HELLO)).status_code == 200
        assert (await asked(made, client, "critic", HELLO)).status_code == 200
        assert (await asked(made, client, "critic", HELLO, HELLO)).status_code == 403
        assert made.recording.stop == LoopEnd(reason="max_turns", truncated_by="turns")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"policies": {"policy": "judges"}}, "'policy' is the policy's"),
        ({"policies": {"policy-small": "judges"}}, "'policy-small' is the policy's"),
        ({"policies": {"": "judges"}}, "'' is the policy's"),
        ({"policies": {"critic": ""}}, "'critic' names no pool"),
        ({"agent": None}, "the row names none"),
        ({"trained": ["critics"]}, "'critics' is none of the row's policies.*critic"),
        ({"trained": ["critic"]}, None),
        ({}, None),
    ],
)
@pytest.mark.parametrize("kind", [SweTask, TaskRow])
def test_a_row_whose_models_cannot_be_asked_apart_is_refused(
    kind: type, change: dict[str, Any], why: str | None
) -> None:
    """Under the policy's name another pool would answer everything, and nothing would be trained."""
    row = {
        "agent": "mine",
        "policies": {"critic": "judges"},
        "instruction": "x",
        "image": "x",
        "workdir": "/",
        **change,
    }
    if why is None:
        assert fitting(row, kind).policies == {"critic": "judges"}
        return
    with pytest.raises(BadRow, match=why):
        fitting(row, kind)
