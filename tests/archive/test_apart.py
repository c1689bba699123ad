"""What cannot be written holds up nothing else, and shows."""

from collections.abc import Iterable
from typing import IO

import pytest
from msgspec.structs import replace

from prorl_mq.archive import table
from prorl_mq.archive.shelf import Shelf
from prorl_mq.archive.table import WholeGroup
from prorl_mq.converters.table import Row, Sample, rows
from prorl_mq.duties.archiving import turns
from prorl_mq.duties.archiving.turns import Archiving
from prorl_mq.store.archive import waiting
from tests.archive.groups import acknowledged, close, trajectory, written
from tests.archive.test_archiving import until_state
from tests.support.queue import Queue

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
