"""What tests of bridges share: rows of data sets, and a worker that ends what they asked for."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from prorl_mq.schema.codec import decode_any
from prorl_mq.schema.ids import group_of
from prorl_mq.schema.items import Held
from prorl_mq.schema.messages import Outcome
from tests.api.service import SOURCE, Worker
from tests.converters.made import with_tools
from workers.handlers.rows import ground_truth, question_of

EXAMPLES = Path(__file__).parents[2] / "examples" / "trainers"
MATH = "openai/gsm8k"
LOST: Mapping[str, Any] = {"outcome": Outcome.INFRA_ERROR, "reward": None}


async def asked(worker: Worker, held: Held) -> float:
    """What a job's row asks for as its reward: its question, or its answer as its family reads it."""
    keys, group = worker.keys, group_of(held.ref)
    spec = decode_any(await worker.store.read("GET", keys.open(group)))
    if spec["data_source"] != MATH:
        return float(spec["payload"]["question"])
    sealed = decode_any(await worker.store.read("GET", keys.sealed(group)))
    assert question_of(spec["payload"]).startswith("What is ")
    return float(ground_truth(sealed))


async def serve(worker: Worker, count: int, **ending: Any) -> None:
    """Ends jobs with the reward that their row asks for; those that ask for less than 0 are lost."""
    for _ in range(count):
        held = await worker.in_run()
        reward = await asked(worker, held)
        ended = dict(LOST) if reward < 0 else {"reward": reward}
        await worker.finish(held, **{"trajectory": with_tools().trajectory, **ended, **ending})


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


def standard(number: float, index: int = 0) -> dict[str, Any]:
    """A row as verl's preprocessing writes it."""
    return {
        "data_source": MATH,
        "prompt": [{"role": "user", "content": f"What is {number}?"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(number)},
        "extra_info": {"split": "train", "index": index, "answer": f"#### {number}"},
    }
