"""A queue, its mirror, and rq's own readers on that."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis as blocking
from rq import Queue as RqQueue
from rq import Worker as RqWorker
from rq.job import Job
from rq.registry import (
    BaseRegistry,
    CanceledJobRegistry,
    FailedJobRegistry,
    FinishedJobRegistry,
    ScheduledJobRegistry,
    StartedJobRegistry,
)
from rq.serializers import JSONSerializer

from prorl_mq.dashboard import rq_format
from prorl_mq.dashboard.mirror import Mirror, settings_for
from prorl_mq.dashboard.projector import Projector
from prorl_mq.schema.ids import JobRef
from prorl_mq.schema.messages import Stage
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import RedisSettings, connect
from tests.support.queue import Queue

DATABASE = 1
REGISTRIES: dict[str, type[BaseRegistry]] = {
    "started": StartedJobRegistry,
    "scheduled": ScheduledJobRegistry,
    "finished": FinishedJobRegistry,
    "failed": FailedJobRegistry,
    "canceled": CanceledJobRegistry,
}


class Reader:
    """The mirror as rq reads it."""

    def __init__(self, settings: RedisSettings) -> None:
        self.redis = blocking.Redis.from_url(settings.url)

    def job(self, ref: JobRef, stage: Stage) -> Job:
        return Job.fetch(rq_format.record_id(ref, stage), connection=self.redis, serializer=JSONSerializer)

    def worker(self, name: str) -> RqWorker:
        key = rq_format.worker_key(name)
        found = RqWorker.find_by_key(key, connection=self.redis, serializer=JSONSerializer)
        assert isinstance(found, RqWorker)
        return found

    def places(self, ref: JobRef, stage: Stage) -> list[str]:
        """Every list that names the job: it should be one."""
        record = rq_format.record_id(ref, stage)
        queue = RqQueue(stage.value, connection=self.redis, serializer=JSONSerializer)
        found = ["queued"] if record in queue.get_job_ids() else []
        for name, kind in REGISTRIES.items():
            registry = kind(stage.value, connection=self.redis, serializer=JSONSerializer)
            if record in registry.get_job_ids(cleanup=False):
                found.append(name)
        return found

    def everything(self) -> dict[str, Any]:
        """Every key of jobs and lists, with its value; workers and how far it is go by the clock."""
        readers = {
            b"hash": self.redis.hgetall, b"list": lambda key: self.redis.lrange(key, 0, -1),
            b"zset": lambda key: self.redis.zrange(key, 0, -1, withscores=True), b"set": self.redis.smembers,
            b"stream": self.redis.xrange,
        }  # fmt: skip
        moving = (b"rq:worker", b"rq:execution")
        keys = [key for key in self.redis.keys("*") if key != b"rq:projector" and not key.startswith(moving)]
        kinds = {key: self.redis.type(key) for key in sorted(keys)}
        return {key.decode(): readers[kind](key) for key, kind in kinds.items() if kind != b"none"}  # gone by now


@pytest.fixture
async def queue(settings: RedisSettings, keys: Keys) -> AsyncIterator[Queue]:
    redis = connect(settings)
    made = Queue(redis, keys)
    await made.prepare()
    yield made
    await redis.aclose()


@pytest.fixture
def mirrored(settings: RedisSettings) -> RedisSettings:
    return settings_for(settings, DATABASE, None, None)


@pytest.fixture
def reader(mirrored: RedisSettings) -> Iterator[Reader]:
    made = Reader(mirrored)
    yield made
    made.redis.close()


@asynccontextmanager
async def projecting(queue: Queue, mirrored: RedisSettings) -> AsyncIterator[Projector]:
    """A projector as a new process would make it."""
    redis = connect(mirrored)
    try:
        yield Projector(queue.store, Mirror(redis, queue.keys.namespace))
    finally:
        await redis.aclose()


@pytest.fixture
async def projector(queue: Queue, mirrored: RedisSettings) -> AsyncIterator[Projector]:
    async with projecting(queue, mirrored) as made:
        yield made
