"""What tests of bridges share: an example as a user's trainer imports it, and a worker that ends what it asked for."""

import asyncio
import contextlib
import importlib.util
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from prorl_mq.schema.codec import decode_any
from prorl_mq.schema.ids import group_of
from tests.api.service import SOURCE, Worker
from tests.converters.made import with_tools

EXAMPLES = Path(__file__).parents[2] / "examples" / "trainers"


def bridge(name: str) -> Any:
    """An example, as a user's trainer imports it."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made
    spec.loader.exec_module(made)
    return made


async def serve(worker: Worker, count: int, **ending: Any) -> None:
    """Ends jobs with the number that their question is as reward."""
    for _ in range(count):
        held = await worker.in_run()
        spec = decode_any(await worker.store.read("GET", worker.keys.open(group_of(held.ref))))
        reward = float(spec["payload"]["question"])
        await worker.finish(held, **{"reward": reward, "trajectory": with_tools().trajectory, **ending})


@contextlib.asynccontextmanager
async def serving(worker: Worker, count: int, **ending: Any) -> AsyncIterator[None]:
    async with asyncio.timeout(100), asyncio.TaskGroup() as tasks:
        tasks.create_task(serve(worker, count, **ending))
        yield


def question(number: float) -> dict[str, str]:
    return {"question": str(number)}


def row(number: float, task_id: str = "t") -> dict[str, Any]:
    """A row of a data set that names its task."""
    return {"prorl": {"task_id": task_id, "data_source": SOURCE, "payload": question(number)}}
