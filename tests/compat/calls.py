"""Calls as trainers write them."""

import asyncio
from typing import Any

import httpx

from tests.api.service import SOURCE, Worker

BACKEND = "http://127.0.0.1:9"


def call(job_id: str | None = "job", trajectory: int = 0, **sampling: Any) -> dict[str, Any]:
    """A body of `/process`, with a column that no family knows and the answer among the others."""
    instance = {"data_source": SOURCE, "instance_id": "i-1", "trajectory_id": trajectory, "question": "?"}
    about = {"temperature": 1.0, "max_iterations": 4, "token_level_generation": True, **sampling}
    return {"job_id": job_id, "instance": {**instance, "answer": "!", "level": None}, "sampling_params": about}


async def start(client: httpx.AsyncClient, base: str = "") -> None:
    """As a trainer does: addresses first."""
    assert (await client.post(f"{base}/add_llm_server", json={"address": BACKEND})).status_code == 200
    assert (await client.post(f"{base}/start")).status_code == 200


async def answered(client: httpx.AsyncClient, worker: Worker, body: dict[str, Any], **ending: Any) -> dict[str, Any]:
    """What the caller gets when its job ends so."""
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(client.post("/process", json=body))
        await worker.complete(**ending)
        answer = await waiting
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def counted(client: httpx.AsyncClient, **counts: int) -> dict[str, Any]:
    """The status, once it shows these counts."""
    async with asyncio.timeout(60):
        while True:
            found: dict[str, Any] = (await client.get("/status")).json()
            if all(found[name] == count for name, count in counts.items()):
                return found
