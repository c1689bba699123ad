"""CPU of a turn that changes nothing: of looking at its sandbox, and of its two records on their way to Redis."""

import asyncio
import contextlib
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from bench.measure import fine_cpu_s, load
from prorl_mq.schema.items import Claim
from prorl_mq.schema.messages import Stage
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.payloads.checkpoints import CheckpointArchives
from prorl_mq.store.server import fitness
from prorl_mq.store.server.connection import connect, patiently
from sandbox.isolators.kinds import make_provider
from sandbox.protocol import Sandbox, SandboxSpec
from tests.support.queue import Queue, spec
from tests.support.world import World
from workers.process.turn_logs import TurnLogs
from workers.stages.job_log import JobLog
from workers.stages.save_pace import SavePace
from workers.stages.work import Work

TURNS = 50
FILES = 10
JOBS = 32  # whose records are sent at the same time
RECORD = bytes(range(256)) * 4  # 200 tokens, packed
THINKS_S = 0.05  # between two turns: a save has that long, as while the policy is asked


class Savings:
    """Blocks of turns in one sandbox: not saved, saved behind each, and saved as a rollout does it."""

    def __init__(self, box: Sandbox) -> None:
        self._box = box
        self._pace = SavePace()

    async def block(self, way: str) -> float:
        """Milliseconds of CPU a turn, of all processes in the sandbox and of this one."""
        began = self._cpu_s()
        for _ in range(TURNS):
            now = asyncio.get_running_loop().time()
            self._pace.acts(now)
            await self._box.bash("cat /workspace/0")
            now = asyncio.get_running_loop().time()
            if way == "each turn" or (self._pace.due(now) and way == "paced"):
                saved = await self._box.save()
                changed = bool(saved.data)
                self._pace.saved(now, asyncio.get_running_loop().time(), len(saved.data or b""), changed=changed)
            await asyncio.sleep(THINKS_S)
        return (self._cpu_s() - began) / TURNS * 1e3

    def _cpu_s(self) -> float:
        return fine_cpu_s([self._box.handle.pid]) + time.process_time()


async def savings(kind: str, rounds: int) -> None:
    found: defaultdict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)  # noqa: ASYNC240 - nothing else runs
        provider = make_provider(kind, node="bench", state_dir=Path(directory), tools_dir=None, python_dir=None)
        for _ in range(rounds):
            box = await provider.create(SandboxSpec(owner="bench"))
            for number in range(FILES):
                await box.write_file(f"/workspace/{number}", b"x" * 1000)
            before = fine_cpu_s([box.handle.pid])
            await box.mark()
            found["mark"].append((fine_cpu_s([box.handle.pid]) - before) * 1e3)
            made = Savings(box)
            for way in ("none", "each turn", "paced"):
                found[way].append(await made.block(way))
            await box.close()
        await provider.aclose()
    print(f"CPU, ms; load {load()}; {rounds} sandboxes of {FILES} files, {TURNS} turns that read one:")
    print(f"mark, once a rollout: {_told(found['mark'])}")
    for way in ("each turn", "paced"):
        more = [one - none for one, none in zip(found[way], found["none"], strict=True)]
        print(f"saved {way}, more a turn than without ({statistics.median(found['none']):.2f}): {_told(more)}")


async def records(rounds: int) -> None:
    """The CPU of logging a turn: of this process, and of Redis."""
    ours, servers = [], []
    with tempfile.TemporaryDirectory(prefix="pq") as directory:
        world = World(Path(directory))
        world.start_redis()
        assert world.redis is not None
        client = connect(world.settings)
        try:
            queue = Queue(client, Keys(world.namespace))
            await patiently(lambda: fitness.start_up(queue.store.redis), outage_ms=20_000)
            await queue.prepare()
            logs = TurnLogs(queue.store)
            running = asyncio.create_task(logs.run())
            archives = CheckpointArchives(queue.store)
            for number in range(rounds):
                jobs = []
                for place in range(JOBS):
                    held = await queue.hold(Stage.RUN, group=f"g{number}-{place}", batch=f"b{number}-{place}")
                    work = Work(held=held, claim=Claim("claimed", held.token), spec=spec())
                    jobs.append(JobLog(work, logs.send, [], archives))
                before, server = time.process_time(), fine_cpu_s([world.redis.pid])
                for _ in range(TURNS):
                    await asyncio.gather(*(job.append(RECORD, wait=True) for job in jobs))
                    await asyncio.gather(*(job.append(RECORD, wait=False) for job in jobs))
                ours.append((time.process_time() - before) / TURNS / JOBS * 1e3)
                servers.append((fine_cpu_s([world.redis.pid]) - server) / TURNS / JOBS * 1e3)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        finally:
            with contextlib.suppress(Exception):
                await client.aclose()
            world.stop()
    print(f"records of a turn, {JOBS} jobs at a time: this process {_told(ours)}, Redis {_told(servers)}")


def _told(values: list[float]) -> str:
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"
