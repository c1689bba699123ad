"""Acknowledged groups are in the archive whole and once; what waits for it is bounded, and never holds the queue."""

from collections.abc import Callable

import msgspec
import pytest
from pyarrow import parquet

from prorl_mq.archive.shelf import Shelf
from prorl_mq.clock import monotonic
from prorl_mq.duties.archiving.turns import Archiving
from prorl_mq.schema.codec import decode_trajectory, encode_trajectory
from prorl_mq.schema.ids import GroupRef, JobRef
from prorl_mq.schema.messages import Stage
from prorl_mq.schema.settings import RunSettings
from prorl_mq.service import archived, recall
from prorl_mq.store import results
from prorl_mq.store.archive import waiting
from prorl_mq.store.archive.waiting import ArchiveState
from tests.archive.groups import PATIENCE_S, acknowledged, close, trajectory, written
from tests.support.queue import RUN, Queue

pytestmark = pytest.mark.anyio


async def blobs(queue: Queue) -> int:
    return len(await queue.command("KEYS", f"{queue.keys.prefix}blob:*"))


async def test_an_acknowledged_group_is_in_the_archive_bit_for_bit_and_its_blobs_go(
    queue: Queue, archiving: Archiving, shelf: Shelf
) -> None:
    await archiving.turn()
    await close(queue)
    [result] = await queue.results()
    record = await results.record(queue.store, RUN, result.cursor)
    assert await queue.ack_all() == 1
    assert await blobs(queue) == 1
    await written(queue, archiving)
    kept = shelf.group("acme", "r", "g")
    assert kept is not None
    assert record is not None
    assert kept.record == record
    assert kept.trajectories == {"r:g:0": decode_trajectory(encode_trajectory(trajectory()))}
    assert await blobs(queue) == 0
    assert await waiting.runs(queue.store) == {}
    state = await waiting.state(queue.store)
    assert (state.groups, state.bytes, state.archived, state.fault) == (0, 0, 1, "")


async def test_pages_show_an_acknowledged_group_and_its_job_from_the_archive(
    queue: Queue, archiving: Archiving
) -> None:
    await acknowledged(queue, archiving, "g", "h")
    await written(queue, archiving)
    store, ref = queue.store, JobRef(f"{RUN}:g:0")
    of_batch = await recall.archived_groups(store, RUN, batch="b-g", after="0", limit=9)
    assert [each.group_id for each in of_batch.groups] == ["g"]
    page = await recall.archived_groups(store, RUN, batch=None, after="0", limit=1)
    assert [(each.group_id, each.archived) for each in page.groups] == [("h", True)]
    rest = await recall.archived_groups(store, RUN, batch=None, after=page.next or "", limit=5)
    assert ([each.group_id for each in rest.groups], rest.next) == (["g"], None)
    view = await recall.group(store, GroupRef(f"{RUN}:g"))
    assert view.summary.archived
    assert [sample.job_id for sample in view.samples] == ["r:g:0"]
    line = await recall.job_timeline(store, ref)
    assert line.status.archived
    assert line.status.task_id == view.summary.task_id != ""
    assert [each.event for each in line.changes][-1] == "finish"
    assert len((await recall.job_trajectory(store, ref)).turns) == 2
    log = await recall.job_log(store, ref, after=0, limit=10)
    assert ([turn.ids for turn in log.turns], log.complete) == ([[3, 4], [7]], True)


async def test_another_tenant_finds_none_of_it(queue: Queue, archiving: Archiving) -> None:
    await acknowledged(queue, archiving, "g")
    await written(queue, archiving)
    assert await archived.group(queue.store, GroupRef("other:r:g")) is None
    assert await archived.group(queue.store, GroupRef(f"{RUN}:g")) is not None


async def test_what_is_sealed_is_not_archived(queue: Queue, archiving: Archiving, shelf: Shelf) -> None:
    await archiving.turn()
    await queue.finish(await queue.hold(Stage.EVAL, sealed={"answer": "CANARY-1"}))
    assert b"CANARY-1" in await queue.command("GET", queue.keys.sealed(GroupRef(f"{RUN}:g")))
    await queue.settle()
    await queue.ack_all()
    await written(queue, archiving)
    [file] = shelf.folder("acme", "r").files()
    assert b"CANARY-1" not in file.path.read_bytes()
    assert "CANARY-1" not in str(parquet.read_table(file.path).to_pylist())


async def test_without_a_directory_acknowledging_deletes_as_ever(
    queue: Queue, archiving: Archiving, shelf: Shelf
) -> None:
    shelf.directory.rmdir()
    await acknowledged(queue, archiving, "g")
    assert await blobs(queue) == 0
    found = await queue.command("KEYS", f"{queue.keys.prefix}archiv*")
    assert found == []


async def test_what_waits_is_bounded_and_what_is_above_is_passed_over_and_counted(
    queue: Queue, archiving: Archiving, shelf: Shelf
) -> None:
    await archiving.turn()
    await waiting.publish(queue.store, until_ms=2 * await queue.store.now_ms(), most_bytes=2_000, fault="")
    for group in ("g", "h"):
        await close(queue, group)
    assert await queue.ack_all() == 2
    state = await waiting.state(queue.store)
    assert (state.groups, state.passed_over, await blobs(queue)) == (1, 1, 1)
    assert state.bytes <= 2_000
    await written(queue, archiving)
    assert [each.group_id for each in shelf.groups("acme", "r", batch=None, after="0", limit=9).groups] == ["g"]


async def test_a_disk_that_takes_nothing_shows_in_the_state_and_nowhere_else(
    queue: Queue, archiving: Archiving, shelf: Shelf
) -> None:
    (shelf.directory / "t").write_text("not a directory")
    await acknowledged(queue, archiving, "g")
    await until_state(archiving, lambda state: bool(state.fault))
    state = await waiting.state(queue.store)
    assert (state.groups, state.archived) == (1, 0)
    assert "Not a directory" in state.fault
    assert (await queue.results(), await queue.ack_all()) == ([], 0)
    await close(queue, "h")
    assert await queue.ack_all() == 1
    (shelf.directory / "t").unlink()
    await written(queue, archiving)
    await until_state(archiving, lambda state: not state.fault)
    assert (await waiting.state(queue.store)).archived == 2


async def test_a_directory_that_is_away_for_a_while_loses_nothing(
    queue: Queue, archiving: Archiving, shelf: Shelf
) -> None:
    await acknowledged(queue, archiving, "g")
    away = shelf.directory.with_name("away")
    shelf.directory.rename(away)
    await until_state(archiving, lambda state: "mounted" in state.fault or bool(state.archived))
    away.rename(shelf.directory)
    await written(queue, archiving)
    assert (await waiting.state(queue.store)).archived == 1


async def test_a_run_that_is_not_to_be_archived_is_not(queue: Queue, archiving: Archiving, shelf: Shelf) -> None:
    await queue.store.configure(RUN, msgspec.json.encode(RunSettings(archive_days=0)))
    await acknowledged(queue, archiving, "g")
    await written(queue, archiving)
    assert ((await waiting.state(queue.store)).unwanted, shelf.runs(), await blobs(queue)) == (1, [], 0)


async def until_state(archiving: Archiving, true: Callable[[ArchiveState], bool]) -> None:
    """Turns until the state is so."""
    give_up = monotonic() + PATIENCE_S
    while not true(state := await waiting.state(archiving._store)):
        assert monotonic() < give_up, state
        await archiving.turn()


async def test_a_process_that_starts_before_the_file_system_is_there_passes_nothing_over(
    queue: Queue, archiving: Archiving, shelf: Shelf
) -> None:
    await acknowledged(queue, archiving, "g")
    away = shelf.directory.with_name("away")
    shelf.directory.rename(away)
    other = Archiving(queue.store, shelf)
    for _ in range(3):
        await other.turn()
    state = await waiting.state(queue.store)
    assert (state.groups, state.passed_over) == (1, 0)
    away.rename(shelf.directory)
    await written(queue, other)
    await other.aclose()
    assert (await waiting.state(queue.store)).archived == 1
