"""A service of any size, written into Redis at once where the verbs would take minutes."""

from collections.abc import Sequence
from typing import Any, Final

from prorl_mq.schema.codec import encode
from prorl_mq.schema.dapo import Dapo, Surplus
from prorl_mq.schema.ids import BatchRef, GroupRef, JobRef, RunRef, batch_ref, group_ref
from prorl_mq.schema.items import GroupSpec, NewBatch, NewGroup
from prorl_mq.schema.messages import Limits, Sampling, Stage
from prorl_mq.store import streams
from prorl_mq.store.batches import DrawPlan
from prorl_mq.store.layout.keys import GROUP
from prorl_mq.store.store import BATCH, Store, batched

AT_ONCE: Final = 1_000  # commands in one pipeline
SLOTS: Final = 8
HOUR_MS: Final = 3_600_000


def run_named(number: int) -> RunRef:
    return RunRef(f"t{number % 10}:r{number}")


async def send(store: Store, commands: Sequence[Sequence[Any]]) -> None:
    """Writes in pipelines."""
    for chunk in batched(commands, AT_ONCE):
        await store.write_many(chunk)


async def begin(store: Store) -> None:
    """An open epoch, the shared streams, and one INIT worker of `SLOTS` slots."""
    await store.open_epoch()
    await streams.prepare(store)
    await workers(store, 1, stage=Stage.INIT)


async def workers(store: Store, count: int, *, stage: Stage) -> None:
    """Living workers, four to a node; each node has a lane."""
    now_ms, keys = await store.now_ms(), store.keys
    commands: list[Sequence[Any]] = []
    for number in range(count):
        name, node = f"{stage}-{number}", f"n{number // 4}"
        about = {"stage": stage, "node": node, "slots": SLOTS, "busy": 0, "pid": 1, "started_ms": 1}
        commands.append(("HSET", keys.worker(name), *(each for pair in about.items() for each in pair)))
        commands.append(("ZADD", keys.workers, now_ms + HOUR_MS, name))
        if stage is Stage.RUN:
            commands.append(("SADD", keys.lanes, node))
    await send(store, commands)
    lanes = list(await streams.lanes(store))
    for chunk in batched(lanes, 100):
        await streams.ensure(store.redis, chunk)


async def runs(store: Store, count: int) -> list[RunRef]:
    """Runs that are known and hold nothing."""
    now_ms, keys = await store.now_ms(), store.keys
    made = [run_named(number) for number in range(count)]
    await send(store, [("ZADD", keys.runs, now_ms, run) for run in made])
    await send(store, [("HSET", keys.run(run), "seen", now_ms) for run in made])
    return made


async def batch(store: Store, run: RunRef, name: str, groups: int, *, n: int = 1) -> BatchRef:
    """A plain batch that waits in its run's backlog."""
    ref = batch_ref(run, name)
    about = NewBatch(run, ref, f"digest {name}", groups, groups * n)
    await _submit(store, about, groups, n)
    return ref


async def sampled(store: Store, run: RunRef, name: str, groups: int, surplus: Surplus) -> BatchRef:
    """A DAPO batch whose groups are all in play."""
    ref = batch_ref(run, name)
    plan = encode(DrawPlan(dapo=Dapo(target_groups=groups, surplus=surplus), pool="t:policy"))
    about = NewBatch(run, ref, f"digest {name}", groups, groups, plan=plan, target=groups, waits_in=ref)
    made = await _submit(store, about, groups, 1)
    drawn = 0
    for chunk in batched(made, BATCH):
        drawn += await store.draw(ref, ref, dict.fromkeys(chunk, ref), drawn=drawn)
    return ref


async def _submit(store: Store, about: NewBatch, count: int, n: int) -> list[GroupRef]:
    name = about.ref.rpartition(":")[2]
    told = encode(
        GroupSpec(
            batch=name,
            task_id="t",
            data_source="sums",
            payload={"q": "1 + 1"},
            n=n,
            max_refills=0,
            sampling=Sampling(),
            limits=Limits(),
            pool="t:policy",
        )
    )
    made = [NewGroup(group_ref(about.run, f"{name}-{at}"), f"{at}", n, HOUR_MS, told, b"") for at in range(count)]
    for chunk in batched(made, BATCH):
        await store.submit(about, chunk)
    return [group.ref for group in made]


async def results(store: Store, run: RunRef, count: int, size: int) -> None:
    """Results that nobody has acknowledged."""
    await send(store, [("XADD", store.keys.results(run), "*", "r", b"x" * size)] * count)


async def leases(store: Store, count: int) -> None:
    """Jobs of RUN that a living worker holds, read a minute ago."""
    await _read(store, count, "held", state="leased")
    now_ms, keys = await store.now_ms(), store.keys
    await send(store, [("ZADD", keys.leases, now_ms + HOUR_MS, f"t0:r0:held-{at}:0") for at in range(count)])


async def unclaimed(store: Store, count: int) -> None:
    """Jobs of RUN that were read a minute ago, and not claimed."""
    await _read(store, count, "lost", state="queued")


async def _read(store: Store, count: int, name: str, *, state: str) -> None:
    keys = store.keys
    stream = keys.stage(Stage.RUN)
    newest = await store.read("XREVRANGE", stream, "+", "-", "COUNT", 1)
    first = int(newest[0][0].split(b"-")[0]) + 1 if newest else 1
    refs = {f"{first + at}-0": f"t0:r0:{name}-{at}:0" for at in range(count)}
    await send(store, [("XADD", stream, entry, "j", ref) for entry, ref in refs.items()])
    fields = ("state", state, "stage", "run", "stream", stream, "token", "1", "deadline", 1 << 50, "owner", "w")
    await send(store, [("HSET", keys.job(JobRef(ref)), *fields, "entry", entry) for entry, ref in refs.items()])
    for chunk in batched(refs, AT_ONCE):
        command = ("XREADGROUP", "GROUP", GROUP, name, "COUNT", len(chunk), "STREAMS", stream, ">")
        await store.write_many([command, ("XCLAIM", stream, GROUP, name, 0, *chunk, "IDLE", 60_000, "JUSTID")])
