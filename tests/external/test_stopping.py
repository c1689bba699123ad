"""A harness is stopped by its rollout's limit, its deadline and a cancel, whatever it does against it."""

import asyncio
import secrets
from typing import Any

import msgspec
import pytest

from prorl_mq.schema.messages import Sampling
from prorl_mq.schema.trajectory import check
from sandbox.isolators import socket_dir
from sandbox.lifetime import label
from sandbox.protocol import Sandbox
from tests.agent.chat import ScriptedPolicy, tooled
from tests.external.stubborn import alive, description, left
from tests.sandbox.conftest import (
    ISOLATED,
    Create,
    create,
    provider,
    python_dir,
    require_apptainer,
    state_dir,
    usual_image,
)
from workers.external.harness import Harness
from workers.external.running import ExternalResult, run_external
from workers.inference.protocol import Completion

__all__ = ["create", "provider", "python_dir", "state_dir", "usual_image"]
pytestmark = [pytest.mark.anyio, pytest.mark.slow]
CONNECT = f"import socket; socket.socket(socket.AF_UNIX).connect('{socket_dir.INSIDE}/{label.SOCKET}')"


@pytest.fixture(params=ISOLATED)
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "apptainer":
        require_apptainer()
    return str(request.param)


class Talker(ScriptedPolicy):
    """Answers so often; then it says nothing more, and tells when it is asked and when it is left alone."""

    def __init__(self, answers: int) -> None:
        super().__init__(tooled(), ["Continue."] * answers)
        self.left = answers  # counted here: requests come in parallel
        self.asked, self.left_alone = asyncio.Event(), asyncio.Event()

    async def generate(self, *prompt: Any, **about: Any) -> Completion:
        if self.left:
            self.left -= 1
            return await super().generate(*prompt, **about)
        self.asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.left_alone.set()
        raise AssertionError


async def rollout(
    box: Sandbox, policy: Talker, mark: str, *, max_turns: int = 50, run_s: float = 300
) -> ExternalResult:
    return await run_external(
        harness=msgspec.convert(description(mark), Harness),
        task="Do it.",
        workdir="/workspace",
        policy=policy,
        renderer=policy.renderer,
        sandbox=box,
        sampling=Sampling(max_turns=max_turns),
        sample="task:0",
        deadline=asyncio.get_running_loop().time() + run_s,
    )


async def nothing_is_left(box: Sandbox, mark: str) -> None:
    """Neither the socket that took its key, nor, with the sandbox, any of its processes."""
    tried = await box.run(["python3", "-I", "-c", CONNECT], timeout_s=60)
    assert tried.exit_code == 1
    assert b"FileNotFoundError" in tried.stderr or b"ConnectionRefusedError" in tried.stderr
    await box.close()
    assert await asyncio.to_thread(left, mark) == []


async def test_a_limit_stops_it(create: Create) -> None:
    box, mark, policy = await create(door=True), secrets.token_hex(8), Talker(9)
    result = await rollout(box, policy, mark, max_turns=3)
    assert (result.stop.reason, result.stop.truncated_by) == ("max_turns", "turns")
    assert result.trajectory is not None
    check(result.trajectory)
    assert len(policy.prompts) == len(result.trajectory.turns) == 3
    await nothing_is_left(box, mark)


async def test_its_deadline_stops_it_and_its_request(create: Create, kind: str) -> None:
    """Truncated, also where the policy was too slow for a first answer: the harness is not to blame."""
    turns = 0 if kind == "apptainer" else 1
    box, mark, policy = await create(door=True), secrets.token_hex(8), Talker(turns)
    result = await rollout(box, policy, mark, run_s=20)
    assert (result.stop.reason, result.stop.truncated_by) == ("time", "time")
    assert result.trajectory is not None
    assert len(result.trajectory.turns) == turns
    check(result.trajectory)
    assert policy.left_alone.is_set()
    await nothing_is_left(box, mark)


async def test_a_cancel_stops_it_and_its_request(create: Create) -> None:
    box, mark, policy = await create(door=True), secrets.token_hex(8), Talker(1)
    running = asyncio.create_task(rollout(box, policy, mark))
    async with asyncio.timeout(60):
        await policy.asked.wait()
    assert alive(mark)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert policy.left_alone.is_set()
    await nothing_is_left(box, mark)
