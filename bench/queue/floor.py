"""The floor: the least that a stage worker on Redis streams can do, written by hand, so that every library's cost has a
ceiling of speed beside it (redis-py asyncio, hiredis, msgspec, uvloop).

    python -m bench.queue.floor STAGE       a worker of init, run or eval
    python -m bench.queue.client bench.queue.floor

A reader on one connection takes entries; each runs as a task; a completer on a second connection sends all that
finished while its last call was under way as one call, at most 64 entries. It is no worker to copy: it has no lease,
no owner check, no reclaim, no retry and no shutdown.
"""

import asyncio
import os
import sys
import uuid
from typing import Any

import msgspec
import redis.asyncio
import uvloop
from redis.exceptions import ResponseError

from bench.queue import probe
from bench.queue.client import serve_async

BATCH = int(os.environ.get("BENCH_BATCH", "64"))
SLOTS = int(os.environ.get("BENCH_SLOTS", "128"))
GROUP = "w"
BLOCK_MS = 4000
RESULT_TTL_S = 600
NEXT = {"init": "run", "run": "eval", "eval": None}
# KEYS: this stage, the next one (none after the last)
# ARGV: group, result TTL, then per entry: entry id, body, job id
# The result key is built here: this script is for one Redis, and one key a job would double its arguments.
COMPLETE = """
local done = 0
for k = 3, #ARGV, 3 do
  if redis.call('XACK', KEYS[1], ARGV[1], ARGV[k]) == 1 then
    redis.call('XDEL', KEYS[1], ARGV[k])
    if KEYS[2] then
      redis.call('XADD', KEYS[2], '*', 'd', ARGV[k + 1])
    else
      redis.call('SET', 'floor:result:' .. ARGV[k + 2], ARGV[k + 1], 'EX', ARGV[2])
    end
    done = done + 1
  end
end
return done
"""


class Job(msgspec.Struct, frozen=True, array_like=True):
    """What travels in an entry."""

    job_id: str
    sent_at: float
    payload: str


class Finished(msgspec.Struct, frozen=True, array_like=True):
    """An entry whose handler is through."""

    entry_id: bytes
    body: bytes
    job_id: str


encode, decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(Job).decode


def stream(stage: str) -> str:
    return f"floor:stage:{stage}"


def connect() -> Any:
    return redis.asyncio.Redis.from_url(probe.URL, protocol=2, socket_timeout=None)


async def make_group(client: Any, stage: str) -> None:
    try:
        await client.xgroup_create(stream(stage), GROUP, "0", mkstream=True)
    except ResponseError as error:
        if "BUSYGROUP" not in str(error):
            raise


async def handle(stage: str, job: Job) -> None:
    if stage == "eval":
        probe.done(job.sent_at, job.payload)


class Worker:
    """One process of one stage."""

    def __init__(self, stage: str) -> None:
        self.stage, self.next_stage = stage, NEXT[stage]
        self.keys = [stream(stage), *([stream(self.next_stage)] if self.next_stage else [])]
        self.reader, self.writer = connect(), connect()
        self.in_flight = 0
        self.finished: list[Finished] = []
        self.some_finished, self.room = asyncio.Event(), asyncio.Event()

    async def work(self) -> None:
        for stage in filter(None, (self.stage, self.next_stage)):
            await make_group(self.writer, stage)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.complete())
            await self.read(tasks)

    async def read(self, tasks: asyncio.TaskGroup) -> None:
        me = uuid.uuid4().hex[:8]
        while True:
            while self.in_flight >= SLOTS:
                self.room.clear()
                await self.room.wait()
            count = min(BATCH, SLOTS - self.in_flight)
            command = [
                "XREADGROUP",
                "GROUP",
                GROUP,
                me,
                "COUNT",
                count,
                "BLOCK",
                BLOCK_MS,
                "STREAMS",
                self.keys[0],
                ">",
            ]
            for _, entries in await self.reader.execute_command(*command) or []:
                self.in_flight += len(entries)
                for entry_id, fields in entries:
                    tasks.create_task(self.run(entry_id, fields[1] if isinstance(fields, list) else fields[b"d"]))

    async def run(self, entry_id: bytes, body: bytes) -> None:
        job = decode(body)
        await handle(self.stage, job)
        self.finished.append(Finished(entry_id, encode(job) if self.next_stage else b"1", job.job_id))
        self.some_finished.set()

    async def complete(self) -> None:
        sha = await self.writer.script_load(COMPLETE)
        while True:
            await self.some_finished.wait()
            self.some_finished.clear()
            while self.finished:
                batch, self.finished = self.finished[:BATCH], self.finished[BATCH:]
                flat = [item for each in batch for item in (each.entry_id, each.body, each.job_id)]
                await self.writer.evalsha(sha, len(self.keys), *self.keys, GROUP, RESULT_TTL_S, *flat)
                self.in_flight -= len(batch)
                self.room.set()


async def serve() -> None:
    redis_client, prefix, count = connect(), uuid.uuid4().hex[:6], 0
    await make_group(redis_client, "init")

    async def enqueue(sent_at: float, payload: str) -> Any:
        nonlocal count
        count += 1
        return await redis_client.xadd(stream("init"), {"d": encode(Job(f"{prefix}{count}", sent_at, payload))})

    async def bulk(jobs: int) -> int:
        nonlocal count
        for start in range(0, jobs, BATCH):
            pipeline = redis_client.pipeline(transaction=False)
            for _ in range(min(BATCH, jobs - start)):
                count += 1
                pipeline.xadd(stream("init"), {"d": encode(Job(f"{prefix}{count}", 0.0, probe.PAYLOAD))})
            await pipeline.execute()
        return -(-jobs // BATCH)

    await serve_async(enqueue, bulk)


def client() -> None:
    uvloop.run(serve())


if __name__ == "__main__":
    uvloop.run(Worker(sys.argv[1]).work())
