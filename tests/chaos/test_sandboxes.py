"""Whatever is killed, no sandbox outlives its job, and nothing of one is left on the machine."""

import asyncio
import contextlib
import os
import random
import time
from pathlib import Path

import pytest

from prorl_mq.schema.messages import BatchRequest, GroupRequest, Limits, Task, Verdict
from prorl_mq.service import submit
from prorl_mq.store.store import Store
from prorl_mq.store.workers import living
from sandbox.keeper import place as keeper_place
from sandbox.keeper.wire import Counts, counts
from sandbox.lifetime import label
from sandbox.lifetime.owner import OwnerKind, parse
from tests.support.service import acknowledge_all, assert_nothing_left, gather, start_all, store_of, until
from tests.support.world import World

pytestmark = [pytest.mark.anyio, pytest.mark.chaos, pytest.mark.timeout(900)]

KINDS = os.environ.get("PRORL_CHAOS_KINDS", "bubblewrap").split(",")
JOBS = int(os.environ.get("PRORL_CHAOS_BOXES", "64"))
SEED = int(os.environ.get("PRORL_CHAOS_SEEDS", "7").split(",")[0])
N = 4


async def kill_in_turn(world: World, store: Store, kills: int) -> None:
    """Kills the workers and the keeper in one seeded order after another, each a while after the last is up again."""
    rng = random.Random(SEED)
    waiting: list[str] = []
    for _ in range(kills):
        if not waiting:
            waiting = rng.sample(sorted(world.workers), len(world.workers))
        await asyncio.sleep(rng.uniform(0.1, 0.9))
        name = waiting.pop()
        world.kill(name)
        world.restart(name)
        await until(lambda name=name: is_up(world, store, name))


async def is_up(world: World, store: Store, name: str) -> bool:
    assert world.workers[name].poll() is None, world.log(name)[-2000:]
    if name == "keeper-0":
        with contextlib.suppress(OSError):
            return (await keeper_counts(world)).live >= 0
        return False
    return world.workers[name].pid in {worker.pid for worker in await living(store)}


async def keeper_counts(world: World) -> Counts:
    return await counts(keeper_place.place(world.directory / "state", world.namespace, "n0"))


def boxes(jobs: int, seed: int, linger: str) -> BatchRequest:
    """Jobs whose agents leave processes behind, long enough that most workers die with sandboxes of theirs alive."""
    rng = random.Random(seed)
    groups = [
        GroupRequest(
            task=Task(
                task_id=f"s{place}",
                data_source="chaos",
                payload={"box": 1, "secret": "CANARY", "linger": linger, "run_ms": rng.choice([0, 100, 500, 1500])},
            ),
            n=N,
        )
        for place in range(jobs // N)
    ]
    limits = Limits(max_deaths=100, max_attempts=100, backoff_ms=50)
    return BatchRequest(run_id="chaos", batch_id="boxes", groups=groups, limits=limits)


@pytest.mark.parametrize("kept", [True, False], ids=["with a keeper", "without a keeper"])
@pytest.mark.parametrize("kind", KINDS)
async def test_no_sandbox_outlives_its_job(world: World, kind: str, kept: bool) -> None:
    """Every group has its record, once; no process, mount or directory of a sandbox is there at the end."""
    world.sandbox = kind
    state = world.directory / "state"
    state.mkdir(mode=0o755)
    world.directory.chmod(0o755)
    linger = f"90{time.time_ns() % 10**9:09d}"
    request = boxes(JOBS if kept else JOBS // 2, SEED, linger)
    async with store_of(world) as store:
        if kept:
            world.start_keeper()
        await start_all(world, store, workers=1, apis=1)
        await submit.accept(store, "default", request)
        async with asyncio.TaskGroup() as group:
            group.create_task(kill_in_turn(world, store, kills=max(2 * len(world.workers), JOBS // 8)))
            records = await gather(store, None, len(request.groups), within_s=600)
        assert [record.verdict for record in records] == [Verdict.ACCEPTED] * len(request.groups)
        assert await acknowledge_all(store) == len(request.groups), "a group was published twice"
        await until(lambda: only_warm_are_left(world))
        await assert_nothing_left(store)
        if kept:
            assert (await keeper_counts(world)).live == 0
    codes = world.stop()
    assert set(codes.values()) == {0}, [world.log(name)[-2000:] for name, code in codes.items() if code]
    assert left_of(world, linger) == []


async def only_warm_are_left(world: World) -> bool:
    """In the directory of all sandboxes."""
    state = world.directory / "state"
    owners = [parse(made.owner) for _, made in label.labelled(state)]
    warm = [owner for owner in owners if owner is not None and owner.kind is OwnerKind.POOL]
    return len(warm) == len(list(label.root(state).iterdir()))


def left_of(world: World, linger: str) -> list[str]:
    """Processes, mounts and files of sandboxes below this world's directory."""
    state = world.directory / "state"
    found = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(world.directory) in line]
    marks = (str(state).encode(), linger.encode(), label.mark(state).encode())
    for proc in Path("/proc").iterdir():
        if proc.name.isdigit() and int(proc.name) != os.getpid():
            try:
                text = (proc / "cmdline").read_bytes() + (proc / "environ").read_bytes()
            except OSError:
                continue
            found += [f"{proc.name}: {text!r}"] if any(mark in text for mark in marks) else []
    found += [str(path) for path in label.root(state).iterdir()]
    locks = {"lock", "turn"}  # of its place, which the next keeper takes again
    return found + [str(path) for path in (state / "keepers").rglob("*") if path.is_file() and path.name not in locks]
