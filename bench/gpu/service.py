"""The service as a deployment has it: Redis, API, keeper and workers as processes, sandboxes, one backend."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from bench import measure
from bench.gpu.handler import Work
from prorl_mq.schema.codec import decode_trajectory
from prorl_mq.schema.ids import run_ref
from prorl_mq.schema.messages import BatchRequest, GroupRecord, GroupRequest, Outcome, Sampling, Stage, Task
from prorl_mq.schema.trajectory import Trajectory
from prorl_mq.service import submit
from prorl_mq.store import pools, streams
from prorl_mq.store.payloads import reading as payloads
from prorl_mq.store.server import fitness
from prorl_mq.store.server.connection import patiently
from prorl_mq.store.store import Store
from prorl_mq.store.workers import living
from tests.support.service import acknowledge_all, gather, store_of
from tests.support.world import World

PLUGIN: Final = Path(__file__).with_name("plugin")
SAMPLING: Final = Sampling(max_tokens_per_turn=1024, max_tokens=1 << 20, max_context_tokens=1 << 20)
A_PROCESS: Final = 64  # slots of a RUN worker
WITHIN_S: Final = 600.0
UP_S: Final = 90.0


class Done(NamedTuple):
    """Some rollouts of the service. `wall_s`: from submission to the last record; CPU seconds of all its processes."""

    wall_s: float
    cpu_s: dict[str, float]
    records: list[GroupRecord]


class Service:
    """One node, for as many rollouts at once in RUN as it was started for."""

    def __init__(self, world: World, store: Store) -> None:
        self._world, self._store = world, store
        self._runs = 0

    async def roll(self, works: Sequence[Work], within_s: float = WITHIN_S) -> Done:
        """One batch of single samples. Raises if one was not completed in time, or not at the first attempt."""
        self._runs += 1
        name = f"r{self._runs}"
        groups = [
            GroupRequest(task=Task(task_id=f"t{work.number}", data_source="scripted_agent",
                                   payload=msgspec.to_builtins(work)))
            for work in works
        ]  # fmt: skip
        before, began = self._cpu_s(), time.perf_counter()
        await submit.accept(
            self._store, "default", BatchRequest(run_id=name, batch_id="b", groups=groups, sampling=SAMPLING)
        )
        records = await gather(self._store, None, len(works), within_s=within_s, run=run_ref("default", name))
        wall_s = time.perf_counter() - began
        cpu_s = {name: seconds - before[name] for name, seconds in self._cpu_s().items()}
        samples = [sample for record in records for sample in record.samples]
        bad = [each for each in samples if each.outcome is not Outcome.COMPLETED or each.attempt or each.reward != 1.0]
        if len(records) != len(works) or bad:
            raise RuntimeError(f"{len(records)} of {len(works)} rollouts came back, {len(bad)} wrong: {bad[:1]}")
        return Done(wall_s, cpu_s, records)

    async def finish(self) -> None:
        """Acknowledges the last batch, so that its data is gone."""
        await acknowledge_all(self._store, run_ref("default", f"r{self._runs}"))

    async def trajectories(self, done: Done) -> list[Trajectory]:
        found = []
        for record in done.records:
            blob = await payloads.get(self._store, "default", record.samples[0].trajectory or "")
            assert blob is not None, record.group_id
            found.append(decode_trajectory(blob))
        return found

    def _cpu_s(self) -> dict[str, float]:
        redis = self._world.redis
        processes = {**self._world.workers, **self._world.apis, **({"redis": redis} if redis else {})}
        found: dict[str, float] = {}
        for name, process in processes.items():
            kind = name.partition("-")[0]
            found[kind] = found.get(kind, 0.0) + measure.cpu_s([process.pid])
        return found


@asynccontextmanager
async def service(directory: Path, address: str, tokenizer: Path, slots: int, sandbox: str) -> AsyncIterator[Service]:
    """Its workers have `slots` in each stage. It is up when all of them have been seen."""
    directory.chmod(0o755)  # noqa: ASYNC240 - sandboxes' users must be able to pass
    world = World(directory, lease_ms=15_000, sandbox=sandbox, handlers="scripted_agent", redis_options=())
    world.env["PYTHONPATH"] = f"{PLUGIN}:{world.env['PYTHONPATH']}"
    world.env["PRORL_TOKENIZER"] = str(tokenizer)
    try:
        async with store_of(world) as store:
            await _start(world, store, address, slots)
            yield Service(world, store)
    except BaseException:
        _tell(directory)
        raise
    finally:
        world.stop()


def _tell(directory: Path) -> None:
    """The end of every log, for who must find out what failed."""
    for log in sorted(directory.glob("*.log")):
        print(f"--- {log.name}\n{log.read_text(errors='replace')[-2000:]}", file=sys.stderr, flush=True)


async def _start(world: World, store: Store, address: str, slots: int) -> None:
    world.start_redis()
    await patiently(lambda: fitness.start_up(store.redis), outage_ms=20_000)
    await streams.ensure(store.redis, streams.shared(store.keys))
    await pools.add(store, "default:policy", address, protocol="vllm-generate", model="policy")
    world.start_api()
    world.start_keeper()
    processes = -(-slots // A_PROCESS)
    world.start_worker(Stage.INIT, 0, "--slots", str(slots))
    world.start_worker(Stage.EVAL, 0, "--slots", str(slots))
    for number in range(processes):
        world.start_worker(Stage.RUN, number, "--slots", str(-(-slots // processes)))
    async with asyncio.timeout(UP_S):
        while len(await living(store)) < 2 + processes:
            await asyncio.sleep(0.1)
