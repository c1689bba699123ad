"""Policy updates of a whole service, announced over HTTP, on a real vLLM that is in the middle of turns."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from prorl_mq.client import AsyncClient
from prorl_mq.schema.trajectory import Trajectory, check
from tests.cli.conftest import Up
from tests.vllm.control import swap
from tests.vllm.scoring import TOLERANCE, Scorer
from tests.vllm.watching import begun, until_begun, until_sampled
from workers.inference.clients import InferenceClients

pytestmark = pytest.mark.anyio
POOL = "policy"
TOKENS = 3000


class Trainer:
    """Announces weights, and remembers which version stands for which."""

    def __init__(self, client: AsyncClient, vllm_address: str, weights: list[Path]) -> None:
        self.client, self.vllm_address = client, vllm_address
        self._weights = weights
        self.version = 0
        self.weights_of = {"default": weights[0]}
        self._batches = 0

    @property
    def told(self) -> str:
        """What vLLM calls the weights that it has now."""
        return str(self.version) if self.version else "default"

    async def submit(self, tokens: int) -> str:
        """Six samples of one sum, each one turn."""
        self._batches += 1
        payload = {"name": "chain_sum", "seed": 3, "size": 1, "tools": False}
        group = {"task": {"task_id": "sum", "data_source": "reasoning_gym", "payload": payload}, "n": 6}
        sampling = {"max_tokens_per_turn": tokens, "max_tokens": tokens, "max_turns": 1, "seed": self._batches}
        name = f"b{self._batches}"
        await self.client.submit({"run_id": "modes", "batch_id": name, "groups": [group], "sampling": sampling})
        return name

    async def trajectories(self, batch: str) -> list[Trajectory]:
        found = []
        async for closed in self.client.groups("modes", batch):
            jobs = [sample.job_id for sample in closed.record.samples]
            found += [await self.client.trajectory(job) for job in jobs]
            await self.client.ack("modes", [closed.cursor])
        for trajectory in found:
            check(trajectory)
        assert len(found) == 6
        return found

    async def announce(self, mode: str) -> None:
        """The other of the two sets of weights."""
        self.version += 1
        directory = self._weights[self.version % 2]
        self.weights_of[str(self.version)] = directory
        await self.client.announce_policy_version(POOL, self.version, mode, str(directory))

    async def updated(self) -> None:
        async with asyncio.timeout(60):
            while [each.step for each in (await self.client.policy(POOL)).backends] != ["done"]:
                await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
async def trainer(vllm_address: str, model: Path, other_weights: Path) -> AsyncIterator[Trainer]:
    with tempfile.TemporaryDirectory(prefix="pq") as name:
        service = Up(Path(name) / "state", "--sandbox", "none", "--tokenizer", model, "--backend", vllm_address)
        try:
            async with AsyncClient(service.url, token=service.token) as client:
                yield Trainer(client, vllm_address, [model, other_weights])
        finally:
            service.end()
    async with InferenceClients() as clients:
        await swap(clients, vllm_address, model, "default", mode="abort")


def versions(trajectory: Trajectory) -> list[str]:
    [segment] = trajectory.segments
    return [span.version[0] for span in segment.spans if span.version]


@pytest.mark.parametrize("mode", ["keep", "abort", "drain"])
async def test_turns_under_way_end_as_the_mode_says_and_score_under_the_weights_that_their_spans_name(
    trainer: Trainer, clients: InferenceClients, scorer: Scorer, mode: str
) -> None:
    """And whatever begins afterwards is sampled by the new weights alone."""
    for _ in range(5):  # on a busy machine all turns may have ended before the announcement is heard
        old = trainer.told
        before = await begun(clients, trainer.vllm_address)
        batch = await trainer.submit(TOKENS)
        await until_begun(clients, trainer.vllm_address, before + 6)
        await until_sampled(clients, trainer.vllm_address, 60)
        await trainer.announce(mode)
        during = await trainer.trajectories(batch)
        await trainer.updated()
        new = trainer.told
        if mode == "drain" or [old, new] in map(versions, during):
            break
    if mode == "drain":
        assert [versions(each) for each in during] == [[old]] * 6, "no turn saw two sets of weights"
    else:
        assert [old, new] in map(versions, during)
        assert all(versions(each) in ([old], [old, new]) for each in during)
    for trajectory in during:
        assert scorer.error(trajectory, trainer.weights_of, carried=mode == "keep") < TOLERANCE
    for trajectory in await trainer.trajectories(await trainer.submit(30)):
        assert versions(trajectory) == [new]
        assert scorer.error(trajectory, trainer.weights_of) < TOLERANCE
