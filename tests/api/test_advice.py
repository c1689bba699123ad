"""Bottlenecks that are planted on a real queue: the advisor names each, with its figures, and what to change."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import msgspec
import pytest

from prorl_mq.schema.items import Advance, Fail, Held
from prorl_mq.schema.messages import Outcome, Stage
from prorl_mq.service.advice.bottleneck import Advice
from prorl_mq.store.images import records
from prorl_mq.store.images.records import ImageRecord
from prorl_mq.store.runs import UPGRADE
from prorl_mq.store.server import fitness
from prorl_mq.store.server.connection import ask
from tests.api.service import Worker, batch, closed

pytestmark = pytest.mark.anyio
LATER = 1 << 50
Plant = Callable[[httpx.AsyncClient, Worker], Awaitable[None]]


async def alive(worker: Worker, stage: str, slots: int, busy: int = 0, **more: str) -> None:
    """One more living worker, as its heartbeat would say."""
    name = f"{stage}-{slots}"
    about: dict[str, str | int] = {"stage": stage, "node": "n1", "slots": slots, "busy": busy, "free": slots - busy}
    about |= {"pid": 1, "started_ms": 1, **more}
    await ask(worker.redis, "HSET", worker.keys.worker(name), *[each for pair in about.items() for each in pair])
    await ask(worker.redis, "ZADD", worker.keys.workers, LATER, name)


async def all_alive(worker: Worker) -> None:
    for stage in ("run", "eval"):
        await alive(worker, stage, 64)


async def submit(client: httpx.AsyncClient, count: int = 1, **more: Any) -> None:
    answer = await client.post("/v1/batches", json=batch(groups=count) | more)
    assert answer.status_code == 202, answer.text


async def to(worker: Worker, count: int, *stages: Stage) -> list[Held]:
    """Jobs on the stream of the stage behind the last of these."""
    taken: list[Held] = []
    for stage in stages:
        taken = [await worker.take(stage) for _ in range(count)]
        for held in taken:
            assert await worker.store.advance([Advance(held, None, b"")]) == ["advanced"]
    return taken


async def backend(client: httpx.AsyncClient, **more: Any) -> None:
    """It refuses connections: probes find it dead after a while, and until then it counts as ready."""
    body = {"address": "http://127.0.0.1:9", **more}
    (await client.post("/v1/pools/policy/backends", json=body)).raise_for_status()


async def nothing(client: httpx.AsyncClient, worker: Worker) -> None:
    await all_alive(worker)


async def init_full(client: httpx.AsyncClient, worker: Worker) -> None:
    await all_alive(worker)
    await ask(worker.redis, "HSET", worker.keys.worker("worker-1"), "slots", 2, "busy", 2)
    await submit(client, 8)


async def run_full(client: httpx.AsyncClient, worker: Worker) -> None:
    await alive(worker, "eval", 64)
    await alive(worker, "run", 2, busy=2)
    await backend(client)
    await submit(client, 6)
    await to(worker, 6, Stage.INIT)


async def eval_full(client: httpx.AsyncClient, worker: Worker) -> None:
    await alive(worker, "run", 64)
    await alive(worker, "eval", 2, busy=2)
    await submit(client, 5)
    await to(worker, 5, Stage.INIT, Stage.RUN)


async def no_eval_worker(client: httpx.AsyncClient, worker: Worker) -> None:
    await alive(worker, "run", 64)
    await submit(client, 3)
    await to(worker, 3, Stage.INIT, Stage.RUN)


async def no_backend(client: httpx.AsyncClient, worker: Worker) -> None:
    await all_alive(worker)
    await submit(client, 2)
    await to(worker, 2, Stage.INIT)
    await worker.take(Stage.RUN)


async def backends_full(client: httpx.AsyncClient, worker: Worker) -> None:
    await all_alive(worker)
    await backend(client, limit=1)
    await submit(client, 2)
    await to(worker, 2, Stage.INIT)
    for _ in range(2):
        await worker.store.assign(await worker.take(Stage.RUN))


async def not_acknowledged(client: httpx.AsyncClient, worker: Worker) -> None:
    await all_alive(worker)
    (await client.put("/v1/runs/run", json={"max_unacked_groups": 1})).raise_for_status()
    await submit(client, 3)
    await worker.complete()


async def read_by_nobody(client: httpx.AsyncClient, worker: Worker) -> None:
    await all_alive(worker)
    await submit(client)
    await worker.complete()


async def ended(client: httpx.AsyncClient, worker: Worker, **ending: Any) -> None:
    """Two jobs of a batch that is acknowledged."""
    await all_alive(worker)
    await submit(client, groups=[group | {"max_refills": 0} for group in batch(groups=2)["groups"]])
    for _ in range(2):
        await worker.complete(**ending)
    cursors, after = list[str](), "0"
    while len(cursors) < 2:
        cursors += [each["cursor"] for each in (await closed(client, "run", after=after))["results"]]
        after = cursors[-1]
    (await client.post("/v1/runs/run/ack", json={"cursors": cursors})).raise_for_status()


async def all_lost(client: httpx.AsyncClient, worker: Worker) -> None:
    """It said that nothing was submitted."""
    await ended(client, worker, reward=None, outcome=Outcome.INFRA_ERROR)


async def quota(client: httpx.AsyncClient, worker: Worker) -> None:
    await all_alive(worker)
    (await client.put("/v1/runs/run", json={"max_jobs": 2})).raise_for_status()
    await submit(client, 5)
    await worker.take(Stage.INIT)


async def paused(client: httpx.AsyncClient, worker: Worker) -> None:
    await all_alive(worker)
    (await client.put("/v1/runs/run", json={})).raise_for_status()
    (await client.post("/v1/runs/run/pause", json={})).raise_for_status()
    await submit(client, 4)


async def image(client: httpx.AsyncClient, worker: Worker) -> None:
    await all_alive(worker)
    await submit(client)
    held = await worker.take(Stage.INIT)
    fetched = ImageRecord(key="k", name="debian:12", node="n1", state="fetching", ms=1, done=5 << 20, total=50 << 20)
    await records.note(worker.store, fetched)
    assert await worker.store.fail([Fail(held, Stage.INIT, 600_000, "its image is fetched", counts=False)]) == [
        "delayed"
    ]


async def memory(client: httpx.AsyncClient, worker: Worker) -> None:
    await all_alive(worker)
    used = int((await fitness.info(worker.redis, "memory"))["used_memory"])
    await submit(client, 2)
    await ask(worker.redis, "CONFIG", "SET", "maxmemory", int(used / 0.9))


async def few(client: httpx.AsyncClient, worker: Worker) -> None:
    await all_alive(worker)
    await backend(client)
    await submit(client)
    await to(worker, 1, Stage.INIT)
    await worker.take(Stage.RUN)


async def upgrade(client: httpx.AsyncClient, worker: Worker) -> None:
    """It said that nothing is short, and that groups wait for their turn."""
    await all_alive(worker)
    await alive(worker, "init", 64)
    holder = f"{UPGRADE}host-1\t1"
    await ask(worker.redis, "SET", worker.keys.duty("admit"), holder)
    await submit(client, 3)


PLANTED: dict[str, tuple[Plant, str, str]] = {
    "nothing submitted": (nothing, "submission", "Nothing was submitted: 192 slots are free."),
    "a batch that has ended": (ended, "submission", "All that was submitted has ended: 192 slots are free."),
    "a batch that was lost": (all_lost, "failing", "has ended, 2 of 2 jobs so far as infra_error: 192 slots are free."),
    "INIT is full": (init_full, "init", "INIT limits: all 2 slots hold a job and 8 wait"),
    "RUN is full": (run_full, "run", "RUN limits: all 2 slots hold a job and 6 wait"),
    "EVAL is full": (eval_full, "eval", "EVAL limits: all 2 slots hold a job and 5 wait"),
    "no worker for EVAL": (no_eval_worker, "workers", "No eval worker is alive, and 3 jobs wait"),
    "no backend": (no_backend, "backends", "0 of 0 take jobs, and 1 jobs in RUN wait"),
    "backends at their limit": (backends_full, "backends", "Backends limit: "),
    "the trainer's quota": (not_acknowledged, "trainer", "it has not acknowledged 1 groups, and 2 wait"),
    "results that nobody reads": (read_by_nobody, "trainer", "1 groups are ready and not acknowledged"),
    "a quota of jobs": (quota, "quota", "A quota limits: 3 groups wait (run: 2 of the run's at most 2 jobs"),
    "a pause": (paused, "paused", "is paused: 1 run (run), with 4 groups in the backlog"),
    "an image": (image, "images", "(one on n1 is at 5 of 50 MiB), and 1 jobs are put aside"),
    "memory": (memory, "redis", "Redis limits: it uses"),
    "an upgrade": (upgrade, "held", "3 groups cannot begin (run: admission is held by upgrade-host-1: "),
    "little work": (few, "submission", "1 jobs are in flight, no group waits, and 19"),
}


@pytest.mark.parametrize("name", PLANTED)
async def test_a_planted_bottleneck_is_named(name: str, client: httpx.AsyncClient, worker: Worker) -> None:
    plant, limit, says = PLANTED[name]
    try:
        await plant(client, worker)
        async with asyncio.timeout(60):
            while True:  # admission, counts and pauses take effect within moments
                answer = await client.get("/v1/advice")
                answer.raise_for_status()
                found = msgspec.json.decode(answer.content, type=Advice)
                if found.limit.value == limit and says in found.says:
                    break
                await asyncio.sleep(0.05)
    except TimeoutError:
        pytest.fail(f"it says: {found.limit}: {found.says}")
    finally:
        await ask(worker.redis, "CONFIG", "SET", "maxmemory", 0)
    assert found.change
    assert found.figures
