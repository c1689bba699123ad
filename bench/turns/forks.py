"""Forks of a long rollout: seconds from the call to each child's own first request, and what is kept for it.

A walk in a real sandbox is paused behind its 40th turn, so that a checkpoint of that turn is kept. It is forked there,
and one turn before: there no checkpoint can be used, and all calls are made again.
"""

import statistics
import tempfile
import time
from pathlib import Path

from prorl_mq.schema.ids import BatchRef, GroupRef, JobRef
from prorl_mq.schema.lifecycle import State
from prorl_mq.schema.messages import ForkOrder
from prorl_mq.schema.status import ForkAnswer, PauseOrder
from prorl_mq.schema.turns import turn_record
from prorl_mq.service import fork, pause, submit
from prorl_mq.service.cancel import cancel
from prorl_mq.store import jobs
from prorl_mq.store.store import Store
from tests.support.service import RUN, store_of, until
from tests.support.walk import Walker, started, walks
from tests.support.world import World

TURNS, CHILDREN = 40, 4


async def forks(kind: str, rounds: int) -> None:
    """Prints a row for each way."""
    rows: dict[str, list[float]] = {"from a checkpoint": [], "with all calls made again": []}
    told: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="pq") as directory:
        world = World(Path(directory), sandbox=kind, handlers="walk")
        try:
            async with store_of(world) as store, (walker := Walker(0.0)).backend:
                await started(world, store, walker, slots=2 * CHILDREN)
                for number in range(rounds):
                    parent, turn, log = await _parent(store, f"w{number}")
                    for place, label in enumerate(rows):
                        name = f"f{number}-{place}"
                        seconds, made, size = await _forked(store, walker, parent, turn - place, name)
                        assert (made.restores >= 0) == (place == 0), made
                        rows[label] += seconds
                        told[label] = f"{made.shared_tokens} tokens each not sampled again; {size} bytes, log {log}"
                    await cancel(store, "job", parent)
        finally:
            world.stop()
    for label, seconds in rows.items():
        spread = f"median {statistics.median(seconds):.2f} s, {min(seconds):.2f} to {max(seconds):.2f}"
        print(f"fork of {TURNS} turns into {CHILDREN}, {label}: {spread}; {told[label]}", flush=True)


async def _parent(store: Store, name: str) -> tuple[JobRef, int, int]:
    """A paused walk, its last turn, and the bytes of its log."""
    ref = JobRef(f"{RUN}:{name}-0:0")
    await submit.accept(store, "default", walks(name, 1, 10 * TURNS))

    async def reached() -> bool:
        [job] = await jobs.read(store, [ref])
        return job is not None and job.logged > 2 * TURNS

    async def parked() -> bool:
        [job] = await jobs.read(store, [ref])
        return job is not None and job.state == State.PAUSED

    await until(reached, within_s=300)
    await pause.pause(store, "job", ref, PauseOrder())
    await until(parked, within_s=60)
    log = await jobs.log(store, ref)
    turns = sum(turn_record(each)[1] is not None for each in log) // 2
    return ref, turns - 1, sum(map(len, log))


async def _forked(
    store: Store, walker: Walker, parent: JobRef, turn: int, name: str
) -> tuple[list[float], ForkAnswer, int]:
    """Seconds until each child has sent its first request, and bytes of the fork."""
    walker.backend.requests.clear()
    began = time.perf_counter()
    made = await fork.fork(store, parent, ForkOrder(turn=turn, n=CHILDREN, name=name))

    async def asked() -> bool:
        return len(_first(walker)) == CHILDREN

    await until(asked, within_s=120)
    seconds = [each - began for each in _first(walker)]
    size = await _bytes(store, name)
    await cancel(store, "batch", BatchRef(f"{RUN}:{name}"))
    return seconds, made, size


def _first(walker: Walker) -> list[float]:
    """Times of the requests with the shortest prompt, which each child sends once."""
    lengths = [len(each.call.prompt_ids) for each in walker.backend.requests if len(each.call.prompt_ids) > 100]
    return sorted(
        each.started for each in walker.backend.requests if lengths and len(each.call.prompt_ids) == min(lengths)
    )


async def _bytes(store: Store, name: str) -> int:
    """Bytes of Redis for the turns and the checkpoint of a fork; None of its jobs has a copy."""
    size = await store.redis.execute_command("MEMORY", "USAGE", store.keys.fork(GroupRef(f"{RUN}:{name}")))
    return int(size or 0)
