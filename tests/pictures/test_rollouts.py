"""Rollouts with images: what the policy is given, what the record holds, and what a log gives back."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from prorl_mq.schema.codec import decode_trajectory, encode, encode_trajectory
from prorl_mq.schema.messages import Limits, Sampling
from prorl_mq.schema.trajectory import ForkedFrom, Trajectory, TrajectoryError, check
from prorl_mq.service.fork_records import CannotFork, of_trajectory
from tests.agent.test_journal import Cut, Log, World, bash, call
from tests.pictures.seeing import picture, seeing_renderer
from workers.agent.compaction import History
from workers.agent.hermes import Message
from workers.agent.journal import LogDiffers
from workers.agent.loop import run_agent
from workers.agent.pictures import messages
from workers.agent.pictures.messages import MarksMismatched, attached
from workers.agent.renderer import Renderer
from workers.agent.tools import TOOLS
from workers.handler import JobView
from workers.handlers.asking import Prompts, ask
from workers.handlers.prorl.single_turn import answer_once
from workers.inference import pictures
from workers.inference.pictures import Picture, check_shown, without
from workers.inference.protocol import Completion
from workers.inference.run_clock import RunClock
from workers.rehearsal.policy import ScriptedPolicy

pytestmark = pytest.mark.anyio
IMAGES = [picture(300, 150), picture(60, 60, "blue")]
TEXTS = [bash("one"), bash("two"), call("finish", '{"message": "2"}')]
RECORDS = 2 * len(TEXTS) - 1


class Looking(ScriptedPolicy):
    """Remembers which images it was shown with each prompt."""

    def __init__(self, renderer: Renderer, texts: Sequence[str], *, pad: bool = False) -> None:
        super().__init__(renderer, texts)
        self.shown: list[Sequence[Picture]] = []
        self.stops: list[Sequence[int]] = []
        self.pad = pad

    async def generate(self, prompt_ids: Sequence[int], *, max_tokens: int, **sampling: Any) -> Completion:
        self.shown.append(sampling.get("pictures", ()))
        self.stops.append(sampling["stop_token_ids"])
        found = await super().generate(prompt_ids, max_tokens=max_tokens, **sampling)
        if self.pad and len(self.prompts) == 1:
            pad = self.shown[0][0].pad
            ids = [*found.ids[:-1], pad]
            return msgspec.structs.replace(found, ids=ids)
        return found


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return seeing_renderer()


async def rollout(policy: Looking, log: Log | None = None, images: Sequence[Any] = IMAGES, **more: Any) -> Trajectory:
    asked = [Message(role="system", content="You look."), Message(role="user", content="<image> or <image>?")]
    result = await run_agent(
        policy=policy,
        renderer=policy.renderer,
        messages=attached(asked, images),
        tools=more.pop("tools", list(TOOLS.values())),
        sandbox=more.pop("world", World()),  # type: ignore[arg-type]
        sampling=Sampling(seed=1),
        sample="task:0",
        deadline=RunClock(60),
        log=log or Log(),
        **more,
    )
    found = result.trajectory
    if log is not None and log.inherited:
        found = msgspec.structs.replace(found, forked_from=ForkedFrom(job_id="r:g:0", turn=log.inherited - 1))
    check(found)
    assert encode(decode_trajectory(encode_trajectory(found))) == encode(found)
    return found


async def compact(history: History) -> list[Message] | None:
    """Keeps the question with its images, in front of the third turn."""
    return list(history.messages[:2]) if history.turns == 2 else None


async def test_each_turn_is_given_the_images_of_its_prompt_and_the_record_has_them_once(renderer: Renderer) -> None:
    policy = Looking(renderer, TEXTS)
    found = await rollout(policy)
    [segment] = found.segments
    assert found.images == IMAGES
    assert [(each.image, each.length) for each in segment.images] == [(0, 55), (1, 4)]
    assert [[each.image for each in shown] for shown in policy.shown] == [IMAGES] * 3
    for prompt, shown in zip(policy.prompts, policy.shown, strict=True):
        for each in shown:
            assert set(prompt[each.start : each.start + each.length]) == {found.image_id}
        assert prompt.count(found.image_id or 0) == 59


async def test_an_image_that_is_shown_twice_is_stored_once(renderer: Renderer) -> None:
    found = await rollout(Looking(renderer, TEXTS), images=[IMAGES[0], picture(300, 150)])
    assert (len(found.images), [each.image for each in found.segments[0].images]) == (1, [0, 0])


async def test_text_alone_brings_nothing_to_the_policy_or_the_record(renderer: Renderer) -> None:
    policy = Looking(renderer, TEXTS)
    found = await rollout(policy, images=[], tools=[tool for tool in TOOLS.values() if not tool.shows])
    assert (found.images, found.image_id, policy.shown) == ([], None, [()] * 3)
    assert policy.stops[0] == renderer.stop_ids


@pytest.mark.parametrize("more", [{}, {"compact": compact}], ids=["whole", "compacted"])
@pytest.mark.parametrize("cut_at", range(RECORDS))
async def test_a_log_gives_the_rollout_back_with_its_images(
    renderer: Renderer, cut_at: int, more: dict[str, Any]
) -> None:
    undisturbed = await rollout(Looking(renderer, TEXTS), Log(), **more)
    log, world = Log(cut_at=cut_at), World()
    with pytest.raises(Cut):
        await rollout(Looking(renderer, TEXTS), log, world=world, **more)
    left = TEXTS[(len(log.records) + 1) // 2 :]
    policy = Looking(renderer, left)
    again = await rollout(policy, Log(log.records), world=world, **more)
    assert [encode(each) for each in again.segments] == [encode(each) for each in undisturbed.segments]
    assert again.images == undisturbed.images
    assert all([each.image for each in shown] == IMAGES for shown in policy.shown)


async def test_a_log_of_other_images_is_refused(renderer: Renderer) -> None:
    log = Log(cut_at=2)
    with pytest.raises(Cut):
        await rollout(Looking(renderer, TEXTS), log)
    with pytest.raises(LogDiffers):
        await rollout(Looking(renderer, TEXTS[1:]), Log(log.records), images=IMAGES[::-1])


async def test_a_fork_begins_with_the_turns_of_a_trajectory_with_images(renderer: Renderer) -> None:
    whole = await rollout(Looking(renderer, TEXTS), Log())
    records = of_trajectory(whole, 0)
    policy = Looking(renderer, [TEXTS[2]])
    forked = await rollout(policy, Log(records, inherited=1))
    assert list(forked.segments[0].prompt_ids) == list(whole.segments[0].prompt_ids)
    assert forked.images == IMAGES
    assert [each.image for each in policy.shown[0]] == IMAGES
    shortened = await rollout(Looking(renderer, [*TEXTS, TEXTS[2]]), Log(), compact=compact)
    with pytest.raises(CannotFork, match="shortened with images"):
        of_trajectory(msgspec.structs.replace(shortened, turns=[*shortened.turns, shortened.turns[-1]]), 2)


async def test_a_placeholder_that_the_policy_samples_ends_its_turn_and_is_not_kept(
    renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No trainer has an image for it. The control: without the cut the record is refused."""
    policy = Looking(renderer, [bash("one"), TEXTS[2]], pad=True)
    found = await rollout(policy)
    assert all(found.image_id in stops for stops in policy.stops)
    assert found.turns[0].tool_calls[0].name == "execute_bash"
    assert found.turns[0].completion_tokens == len(renderer.ids(bash("one")))
    assert found.image_id not in found.segments[0].response_ids
    monkeypatch.setattr("workers.agent.loop.without", lambda completion, *_: completion)
    with pytest.raises(TrajectoryError, match="stands for an image"):
        await rollout(Looking(renderer, [bash("one"), TEXTS[2]], pad=True))
    assert pictures.without is without


@pytest.mark.parametrize("family", ["asked", "answered once"])
async def test_families_ask_with_the_images_of_their_job(
    renderer: Renderer, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with the sampling of a batch that continues completions, and of one image too many, which is the row's."""

    async def its_renderer() -> Renderer:
        return renderer

    monkeypatch.setattr("workers.handlers.asking.policy_renderer", its_renderer)
    monkeypatch.setattr("workers.handlers.prorl.single_turn.policy_renderer", its_renderer)
    policy = Looking(renderer, ["It is red."])
    question = "<image> or <image>?"
    payload = {"prompt": question, "tools": False}
    job = JobView(
        job_id="r:g:0", task_id="t", data_source="math", index=0, attempt=0, payload=payload,
        sampling=Sampling(continue_generation=True), limits=Limits(),
    )  # fmt: skip
    context: Any = SimpleNamespace(job=job, policy=policy, sandbox=None, clock=RunClock(60), log=Log())
    prompts = Prompts(tools=(), with_tools="", without_tools="Look.")

    async def told() -> Trajectory:
        done = await (ask(context, prompts, question) if family == "asked" else answer_once(context))
        return done.trajectory

    messages.enter(IMAGES)
    assert (await asyncio.create_task(told())).images == IMAGES
    messages.enter(IMAGES[:1])
    with pytest.raises(MarksMismatched, match="has 1 images"):
        await asyncio.create_task(told())
    messages.enter(())


def test_a_family_that_shows_no_image_ends_by_name() -> None:
    shown = Trajectory(segments=[], turns=[], stop_reason="answer")
    check_shown(IMAGES, None)
    check_shown(IMAGES, shown)  # nothing was sampled
    check_shown([], shown)
