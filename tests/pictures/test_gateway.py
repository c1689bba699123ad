"""Images of third-party agents, in each of the three APIs: what the policy is shown, and what is refused by name."""

import base64
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from prorl_mq.schema.codec import decode_trajectory, encode, encode_trajectory
from prorl_mq.schema.images.placed import PromptImage
from prorl_mq.schema.trajectory import check
from tests.agent.test_journal import bash
from tests.external.conftest import attempt
from tests.pictures.seeing import picture, seeing_renderer
from tests.pictures.test_rollouts import Looking
from workers.agent.renderer import Renderer
from workers.agent.result import LoopEnd
from workers.external import anthropic, chat, responses
from workers.external.history import BadRequest, Said
from workers.external.request import Request, RequestMemory
from workers.handler import OtherModel

pytestmark = pytest.mark.anyio
RED, BLUE = picture(300, 150), picture(60, 60, "blue")
ADDRESS = "http://169.254.169.254/"
TEXTS = [bash("ls"), "It is blue.", "And red."]
DONE = LoopEnd(reason="exit code 0")
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"


def data(image: PromptImage) -> str:
    return base64.b64encode(image.data).decode()


def url(image: PromptImage) -> str:
    return f"data:{image.kind};base64,{data(image)}"


def part(image: PromptImage) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url(image), "detail": "low"}}


def block(image: PromptImage) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": image.kind, "data": data(image)}}


def item(image: PromptImage) -> dict[str, Any]:
    return {"type": "input_image", "image_url": url(image)}


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return seeing_renderer()


@pytest.fixture
def door() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def asked_by_chat(answers: list[Any]) -> dict[str, Any]:
    """Each API's request behind some answers: an image in the question, one in a result, then a question of text."""
    messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "See "}, part(RED)]}]
    if answers:
        message = answers[0]["choices"][0]["message"]
        called = message["tool_calls"][0]["id"]
        messages += [message, {"role": "tool", "tool_call_id": called, "content": [part(BLUE)]}]
    if answers[1:]:
        messages += [answers[1]["choices"][0]["message"], {"role": "user", "content": "And?"}]
    return {"messages": messages}


def asked_by_messages(answers: list[Any]) -> dict[str, Any]:
    messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "See "}, block(RED)]}]
    if answers:
        called = next(each["id"] for each in answers[0]["content"] if each["type"] == "tool_use")
        result = {"type": "tool_result", "tool_use_id": called, "content": [block(BLUE)]}
        messages += [{"role": "assistant", "content": answers[0]["content"]}, {"role": "user", "content": [result]}]
    if answers[1:]:
        messages += [{"role": "assistant", "content": answers[1]["content"]}, {"role": "user", "content": "And?"}]
    return {"messages": messages, "max_tokens": 500}


def asked_by_responses(answers: list[Any]) -> dict[str, Any]:
    items: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "See "}, item(RED)]}]
    if answers:
        called = next(each["call_id"] for each in answers[0]["output"] if each["type"] == "function_call")
        items += [*answers[0]["output"], {"type": "function_call_output", "call_id": called, "output": [item(BLUE)]}]
    if answers[1:]:
        items += [*answers[1]["output"], {"role": "user", "content": "And?"}]
    return {"input": items}


@pytest.mark.parametrize(
    ("route", "asked"),
    [(CHAT, asked_by_chat), (MESSAGES, asked_by_messages), (RESPONSES, asked_by_responses)],
    ids=["chat", "messages", "responses"],
)
async def test_the_policy_is_shown_the_images_of_questions_and_results(
    renderer: Renderer, door: Path, route: str, asked: Callable[[list[Any]], dict[str, Any]]
) -> None:
    policy = Looking(renderer, TEXTS)
    async with attempt(door, [], policy=policy) as (made, client):
        answers: list[Any] = []
        for _ in TEXTS:
            answer = await client.post(route, json=asked(answers), headers=made.headers)
            assert answer.status_code == 200, answer.text
            answers.append(answer.json())
        trajectory = await made.recording.trajectory(DONE)
    assert trajectory is not None
    check(trajectory)
    assert encode(decode_trajectory(encode_trajectory(trajectory))) == encode(trajectory)
    assert [[each.image for each in shown] for shown in policy.shown] == [[RED], [RED, BLUE], [RED, BLUE]]
    [segment] = trajectory.segments
    assert trajectory.images == [RED, BLUE]
    assert [(each.image, each.length) for each in segment.images] == [(0, 55), (1, 4)]
    assert all(renderer.vision().id in stops for stops in policy.stops)
    for shorter, longer in zip(policy.prompts, policy.prompts[1:], strict=False):
        assert longer[: len(shorter)] == shorter
    assert segment.messages[0].content == "See <image>"


async def test_each_branch_has_its_own_images(renderer: Renderer, door: Path) -> None:
    """Another conversation with another image: another segment, and each image once."""
    policy = Looking(renderer, ["one", "two", "three"])
    async with attempt(door, [], policy=policy) as (made, client):
        for images in ([RED], [BLUE], [BLUE, RED]):
            body = {"messages": [{"role": "user", "content": [part(each) for each in images]}]}
            assert (await client.post(CHAT, json=body, headers=made.headers)).status_code == 200
        trajectory = await made.recording.trajectory(DONE)
    assert trajectory is not None
    check(trajectory)
    assert trajectory.images == [RED, BLUE]
    assert [[each.image for each in segment.images] for segment in trajectory.segments] == [[0], [1], [1, 0]]


@pytest.mark.parametrize("others", [False, True], ids=["no vision", "models of other pools"])
async def test_a_policy_that_can_be_shown_none_answers_400(renderer: Renderer, door: Path, others: bool) -> None:
    policy = Looking(renderer, TEXTS) if others else None
    beside: Mapping[str, OtherModel] = {"judge": OtherModel(Looking(renderer, []), renderer)} if others else {}
    async with attempt(door, TEXTS, policy=policy, others=beside) as (made, client):
        answer = await client.post(CHAT, json=asked_by_chat([]), headers=made.headers)
        plain = await client.post(CHAT, json={"messages": [{"role": "user", "content": "x"}]}, headers=made.headers)
    why = "images are not taken where an agent asks models of several pools" if others else "the rollout has images"
    assert (answer.status_code, plain.status_code) == (400, 200)
    assert why in answer.json()["error"]["message"]


@pytest.mark.parametrize(("name", "most"), [("MAX_IMAGES", 1), ("MAX_TASK_BYTES", len(RED.data))])
async def test_an_attempt_may_show_so_many_images(
    renderer: Renderer, door: Path, monkeypatch: pytest.MonkeyPatch, name: str, most: int
) -> None:
    """The same image again is no other one."""
    monkeypatch.setattr(f"workers.external.prompting.{name}", most)
    async with attempt(door, [], policy=Looking(renderer, TEXTS)) as (made, client):
        codes = []
        for images in ([RED], [RED, RED], [RED, BLUE]):
            body = {"messages": [{"role": "user", "content": [part(each) for each in images]}]}
            codes.append((await client.post(CHAT, json=body, headers=made.headers)).status_code)
    assert codes == [200, 200, 400]


async def test_an_image_that_cannot_be_decoded_is_the_agents_fault(renderer: Renderer, door: Path) -> None:
    broken = msgspec.structs.replace(BLUE, data=BLUE.data[:60])
    async with attempt(door, [], policy=Looking(renderer, TEXTS)) as (made, client):
        body = {"messages": [{"role": "user", "content": [part(broken)]}]}
        answer = await client.post(CHAT, json=body, headers=made.headers)
    assert answer.status_code == 400
    assert "cannot be decoded" in answer.json()["error"]["message"]
    assert made.recording.failure is None


def given(body: Mapping[str, Any]) -> dict[str, msgspec.Raw]:
    return {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in body.items()}


FAR = {"type": "image_url", "image_url": {"url": ADDRESS}}
BLOCK = {"type": "image", "source": {"type": "url", "url": ADDRESS}}
INPUT = {"type": "input_image", "image_url": ADDRESS}
ASKED = {"type": "message", "role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("read", "body"),
    [
        (chat.read, {"messages": [{"role": "user", "content": [FAR]}]}),
        (chat.read, {"messages": [{"role": "tool", "tool_call_id": "a", "content": [FAR]}]}),
        (anthropic.read, {"messages": [{"role": "user", "content": [BLOCK]}], "max_tokens": 5}),
        (
            anthropic.read,
            {"messages": [{"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": [BLOCK]},
            ]}], "max_tokens": 5},
        ),
        (responses.read, {"input": [{"type": "message", "role": "user", "content": [INPUT]}]}),
        (responses.read, {"input": [ASKED, {"type": "function_call_output", "call_id": "a", "output": [INPUT]}]}),
    ],
    ids=["chat", "chat's result", "messages", "messages' result", "responses", "responses' result"],
)  # fmt: skip
def test_an_address_of_an_image_is_refused(read: Callable[..., Request], body: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="nothing is fetched"):
        read(given(body), RequestMemory())


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ([part(RED), {"type": "text", "text": "an <image>"}], "has the text <image> too"),
        ([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}], "begin as no PNG, JPEG or WebP"),
        ([{"type": "image_url", "image_url": {"url": f"data:image/webp;base64,{data(RED)}"}}], "begins as image/png"),
        ([{"type": "input_audio", "input_audio": {}}], "content of type 'input_audio' is not taken"),
    ],
)
def test_what_is_no_image_is_refused_by_name(content: Any, why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        chat.read(given({"messages": [{"role": "user", "content": content}]}), RequestMemory())


@pytest.mark.parametrize("role", ["system", "assistant"])
def test_images_are_taken_of_users_and_tools_alone(role: str) -> None:
    with pytest.raises(BadRequest, match="an image is taken in a message of the user's"):
        chat.read(given({"messages": [{"role": role, "content": [part(RED)]}]}), RequestMemory())


def test_a_message_whose_words_a_task_family_has_replaced_shows_no_image() -> None:
    said = Said(role="tool", text="<image>", images=(RED,))
    assert type(said.message()).__name__ == "Pictured"
    assert type(msgspec.structs.replace(said, text="hidden").message()).__name__ == "Message"
