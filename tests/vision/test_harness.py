"""mini-swe-agent as it is published asks a real vLLM about an image, through the gateway, from its sandbox.

`make agents` installs it.
"""

import asyncio
import base64
import os
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from prorl_mq.schema.messages import Sampling
from prorl_mq.schema.trajectory import check
from sandbox.isolators.bubblewrap import BubblewrapProvider
from sandbox.protocol import Sandbox, SandboxSpec
from tests.pictures.seeing import seeing_renderer
from tests.vision.school import HARNESS_LESSONS, QUESTION, SYSTEM, Lesson
from tests.vision.scoring import forward, largest_difference
from workers.external.harness import AGENTS, harness, mount_of
from workers.external.running import run_external
from workers.inference.assignment import FixedAssigner
from workers.inference.clients import InferenceClients
from workers.inference.policy import StickyPolicy
from workers.inference.probe import Probed

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]
NAME = "mini-swe-agent"
PART = "<MSWEA_MULTIMODAL_CONTENT><CONTENT_TYPE>image_url</CONTENT_TYPE>{}</MSWEA_MULTIMODAL_CONTENT>"
CONFIG = {
    "agent.system_template": SYSTEM,
    "agent.instance_template": "{task}",  # the words of `harness.json` are filled in
    "agent.max_consecutive_format_errors": 1,
    "model.multimodal_regex": f"(?s){PART.format('(.+?)').replace('image_url', '(.+?)')}",
}  # its own settings, where it reads images


@pytest.fixture
async def box(state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Sandbox]:
    """A sandbox with the agent in it."""
    if not (state_dir / "agents" / NAME / ".complete").exists():
        pytest.skip(f"no {NAME}: run `make agents`")
    monkeypatch.setenv(AGENTS, str(state_dir / "agents"))
    provider = BubblewrapProvider(node="test", state_dir=tmp_path)
    mounts = [await asyncio.to_thread(mount_of, NAME)]
    made = await provider.create(SandboxSpec(owner="vision", door=True, mounts=mounts))
    yield made
    await made.close()
    await provider.aclose()


@pytest.mark.parametrize("lesson", HARNESS_LESSONS, ids=lambda lesson: lesson.colour)
async def test_a_third_party_agent_shows_an_image_and_its_ids_are_those_that_vllm_has_read(
    box: Sandbox,
    clients: InferenceClients,
    backend: Probed,
    model: Path,
    state_dir: Path,
    python_path: str,
    lesson: Lesson,
) -> None:
    """Two images of one question: only who has seen them writes the right word."""
    url = f"data:image/png;base64,{base64.b64encode(lesson.image.data).decode()}"
    program = harness(NAME)
    settings = [word for name, value in CONFIG.items() for word in ("-c", f"{name}={value}")]
    policy = StickyPolicy(
        job_id=f"harness-{os.getpid()}-{lesson.colour}",
        token="1",
        assigner=FixedAssigner(backend.info),
        clients=clients,
    )
    result = await run_external(
        harness=msgspec.structs.replace(program, argv=[*program.argv, "-c", "mini.yaml", *settings]),
        task=QUESTION.replace("<image>", PART.format(url)),
        workdir="/workspace",
        policy=policy,
        renderer=seeing_renderer(model),
        sandbox=box,
        sampling=Sampling(temperature=0.1, max_tokens_per_turn=512, max_tokens=1024, max_turns=3),
        sample=f"harness:{lesson.colour}",
        deadline=asyncio.get_running_loop().time() + 300,
    )
    trajectory = result.trajectory
    assert trajectory is not None, result.printed
    check(trajectory)
    assert (result.stop.reason, result.exit_code) == ("finish", 0), (result.printed, trajectory.turns)
    said = [turn.text for turn in trajectory.turns]
    assert (await box.run(["cat", "/workspace/seen"])).stdout.decode() == f"{lesson.colour}\n", (said, result.printed)
    [segment] = trajectory.segments
    assert trajectory.images == [lesson.image]
    tools = [tool.schema() for tool in lesson.tools]  # that it asked with, which a record of its rollout does not keep
    scored = forward(state_dir, python_path, model, msgspec.structs.replace(trajectory, tools=tools))
    assert list(segment.prompt_ids) == scored["prompt_ids"]
    [place] = segment.images
    assert segment.prompt_ids[place.start : place.end] == scored["image_ids"]
    assert largest_difference(trajectory, scored) < 1e-3
