"""Work for a deployment under test, and what must be true when it is done."""

import os
from collections.abc import Sequence
from pathlib import Path

from prorl_mq.schema.ids import RunRef, run_ref
from prorl_mq.schema.messages import BatchRequest, GroupRecord, GroupRequest, Limits, Outcome, Stage, Task, Verdict
from prorl_mq.service import submit
from prorl_mq.store.store import Store
from prorl_mq.store.workers import living
from sandbox.lifetime import label
from sandbox.lifetime.owner import OwnerKind
from tests.support.service import acknowledge_all, gather, until

WITHIN_S = 400.0  # Slurm repeats a message to a node that a busy machine lost after one or two minutes


def run_of(name: str) -> RunRef:
    return run_ref("default", name)


async def submitted(store: Store, name: str, *, groups: int, n: int, **payload: object) -> None:
    """A run of its own for each test, so that none sees another's results."""
    await until(lambda: _known(store), within_s=WITHIN_S)
    task = {"secret": "CANARY-1", **payload}
    batch = BatchRequest(
        run_id=name,
        batch_id="b",
        groups=[
            GroupRequest(task=Task(task_id=f"t{place}", data_source="chaos", payload=task), n=n)
            for place in range(groups)
        ],
        limits=Limits(backoff_ms=50, max_deaths=20, max_attempts=20),
    )
    await submit.accept(store, "default", batch)


async def until_workers(store: Store, count: int) -> None:
    """So many worker processes have been seen."""

    async def seen() -> bool:
        return len(await living(store)) >= count

    await until(seen, within_s=WITHIN_S)


def node_of(worker: str) -> str:
    """The node in a worker's name."""
    return worker.partition("@")[2].rpartition("-")[0]


def jobs_boxes(state: Path) -> list[str]:
    """Sandboxes of jobs, as their labels say; those of a keeper's pool belong to none."""
    return [made.owner for _, made in label.labelled(state) if made.owner.startswith(f"{OwnerKind.JOB} ")]


async def until_leased(store: Store, jobs: int, stage: Stage = Stage.RUN) -> None:
    """Workers of a stage hold so many jobs."""

    async def busy() -> bool:
        return sum(worker.busy for worker in await living(store) if worker.stage is stage) >= jobs

    await until(busy, within_s=WITHIN_S)


async def expect_all(
    store: Store, name: str, *, groups: int, within_s: float = WITHIN_S, attempts: int | None = None
) -> Sequence[GroupRecord]:
    """Each group closes once, accepted, with every sample completed; then nothing of it is left."""
    run = run_of(name)
    records = await gather(store, None, groups, within_s=within_s, run=run)
    assert len(records) == groups, f"{groups - len(records)} groups are missing"
    assert {record.group_id for record in records} == {f"b-{place}" for place in range(groups)}
    for record in records:
        assert record.verdict is Verdict.ACCEPTED, (record.reason, record.samples)
        kept = [sample for sample in record.samples if not sample.replaced]
        assert len(kept) == record.n
        assert all(sample.outcome is Outcome.COMPLETED for sample in kept), kept
        assert all(sample.reward == float(sample.index % 2) for sample in kept)
        if attempts is not None:
            assert all(sample.attempt <= attempts for sample in kept)
    assert await gather(store, None, 1, within_s=0.3, run=RunRef(f"{run}-none")) == []
    assert await acknowledge_all(store, run) == groups, "a group was published twice"
    await settled(store)
    return records


def expect_first_attempts(records: Sequence[GroupRecord]) -> None:
    """No sample has begun again, else what became of it and of its job. One that was read and not leased within half a
    lease, which is a second here, counts an attempt, too: on a busy machine that need not be anybody's end.
    """
    again = [
        f"{sample.job_id}: {sample.failed}\n{record.timelines.get(sample.job_id)}"
        for record in records
        for sample in record.samples
        if sample.attempt > _never_leased(record.timelines.get(sample.job_id, ""))
    ]
    assert not again, "\n".join(again)


def _never_leased(timeline: str) -> int:
    """How often a job was taken back from a worker that had read it and had no lease."""
    rows = [line.split("\t") for line in timeline.splitlines()]
    leased = {row[3] for row in rows if row[1] == "claim"}
    return sum(row[1] == "reap" and row[3] not in leased for row in rows)


def files(directory: Path) -> list[Path]:
    """All below it, of what others make and remove meanwhile."""
    return [Path(place, name) for place, _, names in os.walk(directory) for name in names]


def unfinished(shared: Path) -> list[str]:
    """Files that somebody began to write and nobody put in their place."""
    places = [each for name in ("watch", "redis", "rendezvous", "tls") for each in files(shared / name)]
    return sorted(str(each) for each in places if each.name.startswith(".") or each.suffix == ".new")


async def settled(store: Store) -> None:
    """No lease, timer, entry or lane entry stands for work that is over."""
    keys = store.keys
    left: dict[str, int] = {}

    async def clean() -> bool:
        lanes = [node.decode() for node in await store.read("SMEMBERS", keys.lanes)]
        timers = [keys.leases, keys.delayed, keys.deadlines]
        streams = [keys.due, *(keys.stage(stage) for stage in Stage), *(keys.stage(Stage.RUN, lane) for lane in lanes)]
        counts = [*(("ZCARD", key) for key in timers), *(("XLEN", stream) for stream in streams)]
        found = zip([*timers, *streams], await store.read_many(counts), strict=True)
        left.clear()
        left.update({key: int(count) for key, count in found if int(count)})
        return not left

    try:
        await until(clean, within_s=WITHIN_S)
    except TimeoutError:
        raise TimeoutError(f"of work that is over these are left: {left}") from None


async def _known(store: Store) -> bool:
    return bool(await store.read("HEXISTS", store.keys.schemas, "chaos"))
