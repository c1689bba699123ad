"""What cannot be written holds up nothing else, and shows."""

import errno
import os
import time
from collections.abc import Callable, Iterable
from typing import IO

import msgspec
import pytest
from msgspec.structs import replace

from prorl_mq.archive import table
from prorl_mq.archive.folder import NEW, Keeping
from prorl_mq.archive.shelf import Shelf
from prorl_mq.archive.table import WholeGroup
from prorl_mq.converters.table import Row, Sample, rows
from prorl_mq.duties.archiving import turns
from prorl_mq.duties.archiving.turns import Archiving
from prorl_mq.schema.settings import RunSettings
from prorl_mq.store.archive import waiting
from tests.archive.groups import acknowledged, close, trajectory, written
from tests.archive.test_archiving import until_state
from tests.support.queue import RUN, Queue

pytestmark = pytest.mark.anyio


def names(shelf: Shelf) -> list[str]:
    return sorted(each.group_id for each in shelf.groups("acme", "r", batch=None, after="0", limit=9).groups)


def _fill(file: IO[bytes]) -> None:
    file.write(b"not Parquet")


async def test_a_group_that_cannot_be_written_shows_and_goes_in_the_end_and_the_others_are_written(
    queue: Queue, archiving: Archiving, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(sample: Sample, *, left_out: bool) -> Iterable[Row]:
        if sample.group_id == "bad":
            raise ValueError("does not fit")
        return rows(sample, left_out=left_out)

    monkeypatch.setattr(table, "rows", refused)
    await acknowledged(queue, archiving, "bad", "g", "h")
    await until_state(archiving, lambda state: state.archived == 2 and "bad" in state.fault)
    assert (names(shelf), (await waiting.state(queue.store)).groups) == (["g", "h"], 1)
    monkeypatch.setattr(turns, "UNREADABLE_MS", 0)
    await written(queue, archiving)
    assert (await waiting.state(queue.store)).passed_over == 1


async def test_a_top_k_of_any_size_is_archived(queue: Queue, archiving: Archiving, shelf: Shelf) -> None:
    await archiving.turn()
    await close(queue, told=replace(trajectory(), top_k=2**40))
    await queue.ack_all()
    await written(queue, archiving)
    kept: WholeGroup | None = shelf.group("acme", "r", "g")
    assert kept is not None
    assert kept.trajectories["r:g:0"].top_k == 2**40


async def test_a_damaged_file_stops_no_later_one(queue: Queue, archiving: Archiving, shelf: Shelf) -> None:
    place = shelf.folder("acme", "r")
    place.commit(1, _fill)
    await acknowledged(queue, archiving, "g")
    await written(queue, archiving)
    assert [each.number for each in place.files()] == [1, 2]
    assert [each.summary.group_id for each in table.footer(place.files()[1].path).groups] == ["g"]


async def test_a_full_disk_is_pruned_by_the_limits_as_they_are_now(
    queue: Queue, archiving: Archiving, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = shelf.folder("acme", "r")
    for number in (1, 2):
        place.commit(number, _fill)
        os.utime(place.files()[-1].path, (then := time.time() - 3 * 24 * 3600, then))
    place.keep(Keeping(days=9, bytes=1 << 40))
    await queue.store.configure(RUN, msgspec.json.encode(RunSettings(archive_days=1)))
    made: Callable[..., int] = os.open

    def full(path: str, flags: int, *more: int, **named: int) -> int:
        if NEW in str(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return made(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", full)
    await acknowledged(queue, archiving, "g")
    await until_state(archiving, lambda state: "No space" in state.fault)
    assert [each.number for each in place.files()] == [2]
    monkeypatch.undo()
    await written(queue, archiving)
    monkeypatch.setattr(archiving, "_prune_at", 0.0)
    await until_state(archiving, lambda _: (kept := place.keeping()) is not None and kept.days == 1)
