"""The documented trainer, as it stands in `examples`, on a real service with a worker that ends all it gets."""

import asyncio
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from prorl_mq.client import AsyncClient, ClosedGroup
from prorl_mq.schema.messages import GroupRequest, Task
from prorl_mq.store.server.connection import RedisSettings
from tests.api.process import started
from tests.api.service import SOURCE, Worker, announce_source
from tests.support.service import until

pytestmark = pytest.mark.anyio
EXAMPLE = Path(__file__).parents[2] / "examples" / "continuous_trainer.py"
GROUPS, AHEAD = 8, 3


@pytest.fixture
def example() -> ModuleType:
    about = importlib.util.spec_from_file_location("continuous_trainer", EXAMPLE)
    assert about is not None
    assert about.loader is not None
    module = importlib.util.module_from_spec(about)
    about.loader.exec_module(module)
    module.AHEAD = AHEAD  # type: ignore[attr-defined]
    return module


def test_the_example_stays_short(example: ModuleType) -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 25


async def test_the_service_waits_for_a_slow_trainer_and_goes_on_by_itself(
    settings: RedisSettings, example: ModuleType
) -> None:
    """While it learns from its first group, the others of its bound close and no more begin; then all come in."""
    await announce_source(settings)
    task = Task(task_id="t", data_source=SOURCE, payload={"question": "?"})
    learnt: list[str] = []
    async with started(settings) as (_, url), Worker(settings) as worker, AsyncClient(url) as client:

        async def work() -> None:
            for _ in range(GROUPS):
                await worker.complete()

        async def held() -> bool:
            [run] = await client.runs()
            assert run.unacked_groups <= AHEAD
            return run.in_flight == 0 and run.why.startswith("3 of at most 3 groups run or are not acknowledged")

        async def learn(closed: ClosedGroup) -> None:
            if not learnt:
                await until(held)
                assert (await client.runs())[0].backlog == GROUPS - AHEAD
            learnt.append(closed.record.group_id)

        async with asyncio.timeout(90), asyncio.TaskGroup() as tasks:
            tasks.create_task(work())
            tasks.create_task(example.train(client, "r", [GroupRequest(task=task)] * GROUPS, learn))
    assert sorted(learnt) == sorted(f"prompts-{place}" for place in range(GROUPS))
