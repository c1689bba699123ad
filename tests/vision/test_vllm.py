"""Rollouts with images on a real vLLM: the ids of the record are those that it has read, image by image."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from prorl_mq.schema.messages import Sampling
from prorl_mq.schema.trajectory import Trajectory, check
from tests.agent.test_journal import World
from tests.pictures.seeing import picture, seeing_renderer
from tests.unit.workers.inference.conftest import request
from tests.vision.scoring import forward, largest_difference
from tests.vllm.server import ROOT
from workers.agent.hermes import Message
from workers.agent.loop import run_agent
from workers.agent.pictures.messages import attached
from workers.agent.renderer import Renderer
from workers.inference.assignment import FixedAssigner, WireProtocol
from workers.inference.clients import InferenceClients
from workers.inference.pictures import ImagesDiffer, ImagesUnsupported, shown
from workers.inference.policy import StickyPolicy
from workers.inference.probe import Probed
from workers.inference.protocol import Completion
from workers.inference.run_clock import RunClock

pytestmark = pytest.mark.anyio
IMAGES = [picture(300, 150), picture(60, 60, "blue", "JPEG"), picture(150, 300, "green", "WEBP", lossless=True)]
GLASS = picture(90, 90, (200, 30, 30, 0), mode="RGBA")  # type: ignore[arg-type]
QUESTION = "Compare <image> with <image> and <image>."


@pytest.fixture
def renderer(model: Path) -> Renderer:
    return seeing_renderer(model)


class Stopping(StickyPolicy):
    """A policy whose turns end where they are cut, as by a stop token: a random model seldom samples one."""

    async def generate(self, prompt_ids: Any, **sampling: Any) -> Completion:
        found = await super().generate(prompt_ids, **sampling)
        return msgspec.structs.replace(found, finish_reason="stop")


async def rollout(clients: InferenceClients, backend: Probed, renderer: Renderer, seed: int, **more: Any) -> Trajectory:
    policy = Stopping(
        job_id=f"vision-{os.getpid()}-{seed}", token="1", assigner=FixedAssigner(backend.info), clients=clients
    )

    async def reply(said: str) -> str | None:
        del said
        return "And then?"

    result = await run_agent(
        policy=policy,
        renderer=renderer,
        messages=attached([Message(role="user", content=QUESTION)], more.pop("images", IMAGES)),
        tools=(),
        sandbox=World(),  # type: ignore[arg-type]
        sampling=Sampling(seed=seed, max_turns=3, max_tokens_per_turn=24, temperature=0.9),
        sample=f"vision:{seed}",
        deadline=RunClock(60),
        reply=reply,
        **more,
    )
    check(result.trajectory)
    return result.trajectory


async def test_turns_behind_images_have_the_log_probabilities_of_one_forward_pass(
    clients: InferenceClients, backend: Probed, renderer: Renderer, model: Path, state_dir: Path, python_path: str
) -> None:
    """All at once: the ids, the places, the order of the images, and what vLLM has computed."""
    found = await rollout(clients, backend, renderer, 1)
    assert len(found.turns) == 3
    [segment] = found.segments
    assert [each.length for each in segment.images] == [55, 4, 55]
    scored = forward(state_dir, python_path, model, found)
    assert largest_difference(found, scored) < 1e-3
    assert list(segment.prompt_ids) == scored["prompt_ids"]
    places = [segment.prompt_ids[each.start : each.start + each.length] for each in segment.images]
    assert [id_ for place in places for id_ in place] == scored["image_ids"]


async def test_images_in_another_order_are_another_prompt(
    clients: InferenceClients, backend: Probed, renderer: Renderer, model: Path, state_dir: Path, python_path: str
) -> None:
    """The control of the test above: with two images of one size changed, the forward pass says otherwise."""
    found = await rollout(clients, backend, renderer, 1)
    images = list(found.images)
    other = picture(300, 150, "white")
    changed = msgspec.structs.replace(found, images=[other, *images[1:]])
    scored = forward(state_dir, python_path, model, changed)
    assert largest_difference(found, scored) > 1e-3


async def test_an_image_that_can_be_seen_through_is_seen_on_white_by_both(
    clients: InferenceClients, backend: Probed, renderer: Renderer
) -> None:
    """The control: on black it is another image. Pixels are equal, so that all that is sampled is."""
    of_it, of_white, of_black = [
        await rollout(clients, backend, renderer, 5, images=[each, *IMAGES[:2]])
        for each in (GLASS, picture(90, 90, "white"), picture(90, 90, "black"))
    ]
    assert of_it.segments[0].response_ids == of_white.segments[0].response_ids
    told = [[each for each in found.segments[0].logprobs if each is not None] for found in (of_it, of_white, of_black)]
    assert max(abs(one - other) for one, other in zip(told[0], told[1], strict=True)) < 1e-3
    assert abs(told[0][0] - told[2][0]) > 1e-3


def test_a_worker_loads_the_models_own_processor(model: Path, state_dir: Path, python_path: str) -> None:
    """By transformers' AutoProcessor, with torch, where the tests around this one put it together by hand."""
    done = subprocess.run(
        [state_dir / "vllm/bin/python", "-m", "tests.vision.loading", model],
        text=True, capture_output=True, check=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{python_path}", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert [length for _, length in json.loads(done.stdout)] == [55, 4]


async def test_what_vllm_takes_without_a_word_is_refused(
    clients: InferenceClients, backend: Probed, renderer: Renderer
) -> None:
    """Fewer images than places, and a processor that says another number of ids."""
    messages = attached([Message(role="user", content=QUESTION)], IMAGES)
    opening = renderer.opening(messages)
    asked = request(prompt_ids=opening.ids, **shown(opening.pictures))
    assert (await clients.generate(backend.info, asked)).ids
    fewer = msgspec.structs.replace(asked, pictures=opening.pictures[:2])
    with pytest.raises(ValueError, match="55 ids of a prompt stand for images that are not sent"):
        await clients.generate(backend.info, fewer)
    first = opening.pictures[0]
    shorter = [*opening.ids[: first.start], *opening.ids[first.start + 1 :]]
    moved = [msgspec.structs.replace(each, start=each.start - 1) for each in opening.pictures[1:]]
    narrow = [msgspec.structs.replace(first, length=first.length - 1), *moved]
    with pytest.raises(ImagesDiffer, match="give both the same model directory"):
        await clients.generate(backend.info, msgspec.structs.replace(asked, prompt_ids=shorter, pictures=narrow))


async def test_other_routes_refuse_images(clients: InferenceClients, backend: Probed, renderer: Renderer) -> None:
    opening = renderer.opening(attached([Message(role="user", content=QUESTION)], IMAGES))
    fallback = msgspec.structs.replace(backend.info, protocol=WireProtocol.COMPLETIONS)
    with pytest.raises(ImagesUnsupported, match="takes no images beside ids"):
        await clients.generate(fallback, request(prompt_ids=opening.ids, **shown(opening.pictures)))
