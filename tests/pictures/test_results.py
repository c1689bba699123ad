"""Images that tools show: what the next turn is given, what the record and the log hold, and what is refused."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from prorl_mq.schema.codec import encode
from prorl_mq.schema.images.header import MAX_BYTES
from prorl_mq.schema.images.placed import PromptImage
from prorl_mq.schema.messages import Sampling
from prorl_mq.schema.trajectory import Trajectory, check
from prorl_mq.service.fork_records import CannotFork, of_log, of_trajectory
from tests.agent.chat import tooled
from tests.agent.test_journal import Acts, Cut, Log, World, bash, call
from tests.pictures.seeing import drawn, picture, seeing_renderer
from tests.pictures.test_rollouts import Looking
from workers.agent.compaction import History
from workers.agent.hermes import Message
from workers.agent.journal import LogDiffers
from workers.agent.loop import run_agent
from workers.agent.pictures.messages import attached
from workers.agent.renderer import Renderer
from workers.agent.tools import TOOLS
from workers.inference.run_clock import RunClock

pytestmark = pytest.mark.anyio
RED, BLUE, GREEN = picture(300, 150), picture(60, 60, "blue"), picture(84, 56, "green")
FILES = {
    "/blue.png": BLUE.data, "/green.png": GREEN.data, "/text": b"no image", "/cut.png": BLUE.data[:60],
    "/long.png": drawn(9000, 28),
}  # fmt: skip


def view(path: str) -> str:
    return call("view_image", f'{{"path": "{path}"}}')


FINISH = call("finish", '{"message": "2"}')
TEXTS = [bash("one"), view("/blue.png"), f"Both:\n{view('/green.png')}\n{bash('two')}", FINISH]
RECORDS = 2 * len(TEXTS) - 1


class Desk(World):
    """The same sandbox, with files."""

    def named(self, name: str) -> Acts:
        return Reading(self, name)


class Reading(Acts):
    async def read_file(self, path: str, *, limit_bytes: int) -> bytes:
        if path not in FILES:
            raise FileNotFoundError(2, "No such file or directory", path)
        if len(FILES[path]) > limit_bytes:
            raise OSError(27, f"the file is larger than {limit_bytes} bytes", path)
        return FILES[path]


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return seeing_renderer()


async def rollout(
    policy: Looking, log: Log | None = None, images: Sequence[PromptImage] = (), **more: Any
) -> Trajectory:
    question = "<image>What?" if images else "What?"
    result = await run_agent(
        policy=policy,
        renderer=policy.renderer,
        messages=attached([Message(role="user", content=question)], images),
        tools=more.pop("tools", list(TOOLS.values())),
        sandbox=more.pop("world", None) or Desk(),  # type: ignore[arg-type]
        sampling=more.pop("sampling", Sampling(seed=1)),
        sample="task:0",
        deadline=RunClock(60),
        log=log or Log(),
        **more,
    )
    check(result.trajectory)
    return result.trajectory


@pytest.mark.parametrize("images", [[], [RED]], ids=["first images", "after the task's"])
async def test_the_next_turn_is_given_the_image_and_the_record_has_it(
    renderer: Renderer, images: list[PromptImage]
) -> None:
    policy = Looking(renderer, TEXTS)
    found = await rollout(policy, images=images)
    [segment] = found.segments
    assert found.images == [*images, BLUE, GREEN]
    assert [[each.image for each in shown] for shown in policy.shown] == [
        images, images, [*images, BLUE], [*images, BLUE, GREEN],
    ]  # fmt: skip
    ids = [*segment.prompt_ids, *segment.response_ids]
    assert [each.length for each in segment.images] == [*(55 for _ in images), 4, 6]
    for place in segment.images:
        assert set(ids[place.start : place.end]) == {found.image_id}
        start, end = (each - len(segment.prompt_ids) for each in (place.start, place.end))
        assert end <= 0 or not any(segment.loss_mask[start:end])
    assert [[each.result for each in turn.tool_calls] for turn in found.turns][1] == ["<image>"]


async def test_the_ids_are_those_that_the_processor_makes_of_the_whole(renderer: Renderer) -> None:
    """The turns as a conversation, read at once: the same ids as those that came one behind the other."""
    policy = Looking(renderer, [view("/blue.png"), FINISH])
    await rollout(policy, images=[RED])
    vision = renderer.vision()
    text = re.sub(f"({re.escape(vision.token)})+", vision.token, renderer.text(policy.prompts[1]))
    assert vision.read(text, [RED, BLUE]) == list(policy.prompts[1])


async def compact(history: History) -> list[Message] | None:
    """Keeps the question and the image of a tool, in front of the fourth turn."""
    return [history.messages[0], history.messages[4]] if history.turns == 3 else None


@pytest.mark.parametrize("more", [{}, {"compact": compact}], ids=["whole", "compacted"])
@pytest.mark.parametrize("cut_at", range(RECORDS))
async def test_a_log_gives_the_rollout_back_with_what_its_tools_have_shown(
    renderer: Renderer, cut_at: int, more: dict[str, Any]
) -> None:
    undisturbed = await rollout(Looking(renderer, TEXTS), Log(), [RED], **more)
    log, world = Log(cut_at=cut_at), Desk()
    with pytest.raises(Cut):
        await rollout(Looking(renderer, TEXTS), log, [RED], world=world, **more)
    second = Log(log.records)
    second.files = log.files
    again = await rollout(Looking(renderer, TEXTS[(cut_at + 1) // 2 :]), second, [RED], world=world, **more)
    assert [encode(each) for each in again.segments] == [encode(each) for each in undisturbed.segments]
    assert again.images == undisturbed.images


async def test_a_rollout_whose_file_is_gone_starts_again(renderer: Renderer) -> None:
    log = Log(cut_at=5)
    with pytest.raises(Cut):
        await rollout(Looking(renderer, TEXTS), log)
    with pytest.raises(LogDiffers, match="the image file-1 that a tool has shown is gone"):
        await rollout(Looking(renderer, TEXTS), Log(log.records))


async def test_a_new_sandbox_shows_it_again(renderer: Renderer) -> None:
    log = Log(cut_at=6)
    with pytest.raises(Cut):
        await rollout(Looking(renderer, TEXTS), log)
    second = Log(log.records, rebuilds=True)
    second.files, second.world = log.files, Desk()
    found = await rollout(Looking(renderer, TEXTS[3:]), second, world=second.world)
    assert found.images == [BLUE, GREEN]


async def test_an_image_that_no_turn_has_read_is_not_in_the_record(renderer: Renderer) -> None:
    found = await rollout(Looking(renderer, TEXTS), sampling=Sampling(seed=1, max_turns=2))
    assert (len(found.turns), found.images, found.image_id) == (2, [], None)


async def test_a_fork_begins_in_front_of_the_first_image_of_a_tool(renderer: Renderer) -> None:
    log = Log()
    whole = await rollout(Looking(renderer, TEXTS), log, [RED])
    assert len(of_trajectory(whole, 0)) == len(of_log(log.records[:2])) == 2
    with pytest.raises(CannotFork, match="a tool has shown an image"):
        of_trajectory(whole, 1)
    with pytest.raises(CannotFork, match="a tool has shown an image"):
        of_log(log.records[:4])


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/none.png", "Error: No such file or directory: /none.png"),
        ("/text", "begin as no PNG, JPEG or WebP"),
        ("/cut.png", "cannot be decoded"),
        ("/long.png", "absolute aspect ratio must be smaller"),
    ],
)
async def test_what_cannot_be_shown_is_told_to_the_model(renderer: Renderer, path: str, why: str) -> None:
    """It is the policy's doing, and ends no rollout."""
    found = await rollout(Looking(renderer, [view(path), FINISH]))
    [said] = found.turns[0].tool_calls
    assert why in said.result
    assert (said.ok, said.refused, found.images) == (False, False, [])


async def test_a_file_that_is_too_large_is_not_read(renderer: Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FILES, "/large.png", BLUE.data + bytes(MAX_BYTES))
    found = await rollout(Looking(renderer, [view("/large.png"), FINISH]))
    assert f"the file is larger than {MAX_BYTES} bytes" in found.turns[0].tool_calls[0].result


@pytest.mark.parametrize(("name", "most"), [("MAX_IMAGES", 2), ("MAX_TASK_BYTES", len(RED.data) + len(BLUE.data))])
async def test_a_rollout_is_shown_so_many_images_and_no_more(
    renderer: Renderer, monkeypatch: pytest.MonkeyPatch, name: str, most: int
) -> None:
    """Those of its task among them. The control: the usual limit shows all three."""
    assert (await rollout(Looking(renderer, TEXTS), images=[RED])).images == [RED, BLUE, GREEN]
    monkeypatch.setattr(f"workers.agent.pictures.results.{name}", most)
    found = await rollout(Looking(renderer, TEXTS), images=[RED])
    assert found.images == [RED, BLUE]
    assert "a rollout is shown at most" in found.turns[2].tool_calls[0].result


async def test_a_model_without_vision_is_told_so() -> None:
    found = await rollout(Looking(tooled(), [view("/blue.png"), FINISH]))
    assert "this model takes no images" in found.turns[0].tool_calls[0].result
    assert found.images == []


class Padding(Looking):
    """Samples the id that stands for an image before there is any."""

    async def generate(self, prompt_ids: Sequence[int], *, max_tokens: int, **sampling: Any) -> Any:
        found = await super().generate(prompt_ids, max_tokens=max_tokens, **sampling)
        if len(self.prompts) == 1:
            return msgspec.structs.replace(found, ids=[*found.ids[:-1], self.renderer.vision().id])
        return found


async def test_the_policy_samples_no_id_of_an_image_before_the_first_one(renderer: Renderer) -> None:
    """A later prompt with an image would have a place without one. The control: not where no tool shows any."""
    policy = Padding(renderer, TEXTS)
    found = await rollout(policy)
    assert renderer.vision().id in policy.stops[0]
    assert found.turns[0].completion_tokens == len(renderer.ids(TEXTS[0]))
    assert found.images == [BLUE, GREEN]
    plain = Looking(renderer, TEXTS)
    await rollout(plain, tools=[tool for tool in TOOLS.values() if not tool.shows])
    assert renderer.vision().id not in plain.stops[0]
