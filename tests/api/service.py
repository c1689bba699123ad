"""An API process inside the test, and a worker that does what a test says."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Self

import httpx
import msgspec

from api.app import create_app
from api.compat.app import create_app as create_compat_app
from api.config import ApiSettings, CompatSettings
from prorl_mq.schema.codec import encode, encode_trajectory
from prorl_mq.schema.ids import DEFAULT_TENANT, public
from prorl_mq.schema.items import Advance, Finish, Held
from prorl_mq.schema.messages import Outcome, SampleRecord, Stage
from prorl_mq.schema.task_schema import Schema
from prorl_mq.schema.trajectory import Segment, Trajectory
from prorl_mq.store import streams, work
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import RedisSettings, ask, connect
from prorl_mq.store.store import Store

SOURCE = "echo"


@contextlib.asynccontextmanager
async def compat(settings: RedisSettings, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the ProRL routes, in this process."""
    app = create_compat_app(ApiSettings(redis=settings, compat=CompatSettings(**options)))
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as client:
            yield client


@contextlib.asynccontextmanager
async def api(settings: RedisSettings, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an application that runs in this process, maintenance included."""
    app = create_app(ApiSettings(redis=settings, **options))
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=30) as client:
            yield client


async def announce_source(settings: RedisSettings) -> None:
    """What a worker does at its start."""
    redis = connect(settings)
    try:
        schema = Schema(required=("question",), sealed=("answer",))
        await work.enroll(Store(redis, Keys(settings.namespace), name="test"), {SOURCE: schema}, None)
    finally:
        await redis.aclose()


def batch(run: str = "run", name: str = "batch", groups: int = 1, n: int = 1, **more: Any) -> dict[str, Any]:
    """A batch as a trainer writes it."""
    tasks = [
        {"task_id": f"t{i}", "data_source": SOURCE, "payload": {"question": "?", "answer": "!"}} for i in range(groups)
    ]
    return {"run_id": run, "batch_id": name, "groups": [{"task": task, "n": n} for task in tasks], **more}


TRAJECTORY = Trajectory(
    segments=[Segment(prompt_ids=[1, 2], response_ids=[3, 4], loss_mask=[1, 0], logprobs=[-0.25, None], spans=[])],
    turns=[],
    stop_reason="answer",
)


class Worker:
    """Takes jobs through the stages by the verbs that workers use, one step for each call."""

    def __init__(self, settings: RedisSettings) -> None:
        self.redis, self.blocking = connect(settings), connect(settings)
        self.keys = Keys(settings.namespace)
        self.store = Store(self.redis, self.keys, name="worker-1")

    async def __aenter__(self) -> Self:
        await streams.ensure(self.redis, streams.shared(self.keys))
        about: dict[str, str | int] = {"stage": "init", "node": "n1", "slots": 64, "busy": 0, "pid": 1, "started_ms": 1}
        flat = [each for pair in about.items() for each in pair]
        await ask(self.redis, "HSET", self.keys.worker("worker-1"), *flat)
        await ask(self.redis, "ZADD", self.keys.workers, 1 << 50, "worker-1")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.blocking.aclose()
        await self.redis.aclose()

    async def take(self, stage: Stage) -> Held:
        """The next job of a stage, waited for."""
        lanes = {
            self.keys.stage(stage, front=front): front for front in (True, False) if stage != Stage.EVAL or not front
        }
        found = await streams.read(self.blocking, "worker-1", list(lanes), count=1, block_ms=60_000)
        [(stream, [entry])] = found.items()
        [claim] = await self.store.claim(stage, None, [entry], [120_000], 120_000, front=lanes[stream])
        assert claim.granted
        return Held(entry.ref, claim.token, entry.entry, stage, None, "policy", front=lanes[stream])

    async def in_run(self) -> Held:
        """Takes one job to RUN and holds it there."""
        held = await self.take(Stage.INIT)
        assert await self.store.advance([Advance(held, None, b"")]) == ["advanced"]
        return await self.take(Stage.RUN)

    async def stop(self, held: Held) -> None:
        """Waits until the job is told to stop, and says that it is dead."""
        ended = SampleRecord(job_id=public(held.ref), index=0, outcome=Outcome.CANCELLED, stopped_ms=1.0)
        async with asyncio.timeout(60):
            while await self.store.confirm(held, encode(ended)) != "confirmed":
                await asyncio.sleep(0.02)

    async def complete(self, reward: float | None = 1.0, **ending: Any) -> None:
        """One job from INIT to its end, with a trajectory."""
        await self.finish(await self.in_run(), reward, **ending)

    async def finish(
        self, run: Held, reward: float | None = 1.0, trajectory: Trajectory = TRAJECTORY, **record: Any
    ) -> None:
        """A job that is in RUN to its end; with several of them, whichever is the first in EVAL."""
        blob = self.keys.blob(run.ref, run.token, "trajectory")
        data = encode_trajectory(trajectory)
        await ask(self.redis, "SET", blob, data, "PX", 600_000)
        assert await self.store.advance([Advance(run, None, b"", blob)]) == ["advanced"]
        held = await self.take(Stage.EVAL)
        about = {"outcome": Outcome.COMPLETED, "reward": reward, **record}
        made = SampleRecord(
            job_id=public(held.ref), index=int(held.ref.rpartition(":")[2]), trajectory=blob,
            trajectory_bytes=len(data), **about,
        )  # fmt: skip
        assert await self.store.finish([Finish(held, made.outcome, encode(made))]) == ["finished"]


async def closed(client: httpx.AsyncClient, run: str, **query: Any) -> dict[str, Any]:
    """A page of results."""
    answer = await client.get(f"/v1/runs/{run}/results", params={"wait": 20, **query})
    assert answer.status_code == 200, answer.text
    page: dict[str, Any] = msgspec.json.decode(answer.content)
    return page


__all__ = ["DEFAULT_TENANT", "SOURCE", "TRAJECTORY", "Worker", "announce_source", "api", "batch", "closed", "compat"]
