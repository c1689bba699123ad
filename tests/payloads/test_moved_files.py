"""Payload files of a run that moves to another cell: none is collected on its way, none that may be there is missed."""

import pytest

from prorl_mq.errors import PayloadUnavailable, PayloadUnwritten
from prorl_mq.schema.ids import RunRef
from prorl_mq.schema.items import Finish
from prorl_mq.schema.messages import Outcome, Stage
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.moves import moving, pages
from prorl_mq.store.payloads import reading
from prorl_mq.store.payloads.files import PayloadFiles
from prorl_mq.store.payloads.name import PayloadFile
from prorl_mq.store.store import Store
from prorl_mq.store.verbs.moves import DepartedRun
from tests.payloads.conftest import TENANT, age, under
from tests.payloads.test_collect import DATA, collected, commit, finish, put
from tests.support.queue import RUN, Queue, record
from tests.verbs.moved import MOVER, copied, departed
from tests.verbs.places import JOB

pytestmark = pytest.mark.anyio


async def kept(queue: Queue) -> PayloadFile:
    """A result that nobody has acknowledged, whose trajectory is in a file."""
    held = await queue.hold(Stage.RUN)
    file = await put(queue, held)
    await finish(queue, await commit(queue, held, file), file)
    await queue.settle()
    await queue.command("UNLINK", *await queue.command("KEYS", f"{queue.keys.prefix}job:*"))  # they go by their TTL
    return file


async def test_a_file_of_a_run_on_its_way_is_kept_in_both_cells(queue: Queue, files: PayloadFiles) -> None:
    """Both have one directory here: what neither names goes."""
    file = await kept(queue)
    there = Queue(queue.redis, Keys(f"{queue.keys.namespace}-b"))
    await there.prepare()
    there.store.payloads = files
    await there.store.arrive(RUN, "begin", mover=MOVER, cell="a")
    departure = await departed(queue)
    age(files, file)
    await collected(queue, files)
    assert await reading.get(queue.store, RUN, str(file)) == DATA
    assert await copied(queue, there, departure) == "opened"
    await moving.clear(queue.store, RUN, departure)
    age(files, file)
    await collected(there, files)
    assert await reading.get(there.store, RUN, str(file)) == DATA


async def test_a_directory_that_is_away_ends_the_move_and_a_file_that_is_lost_does_not(
    queue: Queue, files: PayloadFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = await kept(queue)
    departure = await departed(queue)
    monkeypatch.setattr(reading, "READ_S", 0.1)
    monkeypatch.setattr(reading.get, "__kwdefaults__", {"within_s": 0.1})
    away = files.directory.rename(files.directory.with_name("away"))
    with pytest.raises(PayloadUnavailable, match="is not on this host"):
        await pages.page(queue.store, RUN, departure, "")
    away.rename(files.directory)
    page = await pages.page(queue.store, RUN, departure, "")
    assert [each.key for each in page.writes if each.command == pages.FILE] == [str(file)]
    files.path(TENANT, file).unlink()
    page = await pages.page(queue.store, RUN, departure, "")
    assert [each.key for each in page.writes if each.command == pages.FILE] == []
    assert under(files.directory) == set()


async def test_files_that_are_lost_are_looked_for_together(
    queue: Queue, files: PayloadFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other each would be waited for, and a page ends after a while: here, after the first look."""
    names = " ".join(f"file:5:{i:064x}" for i in range(40))
    await kept(queue)
    await queue.command("XADD", queue.keys.results(RUN), "*", "other", names)
    departure = await departed(queue)
    monkeypatch.setattr(reading.get, "__kwdefaults__", {"within_s": 0.1})
    monkeypatch.setattr(pages, "PAGE_S", 0.05)
    count, after = 0, ""
    while (page := await pages.page(queue.store, RUN, departure, after)).after is not None:
        count, after = count + 1, page.after
    assert count < 20


async def test_a_run_with_files_does_not_leave_for_a_cell_that_takes_none(queue: Queue, files: PayloadFiles) -> None:
    """Not even a text that looks like a file's name keeps a run that has none."""
    file = await kept(queue)
    with pytest.raises(PayloadUnwritten, match="cell b has no directory"):
        await moving.depart(queue.store, RUN, "b", files=False)
    assert (await moving.whereabouts(queue.store, RUN)).state == "here"
    assert await moving.takes_files(queue.store)
    files.path(TENANT, file).unlink()
    assert isinstance(await moving.depart(queue.store, RUN, "b", files=False), DepartedRun)
    queue.store.payloads = None
    assert not await moving.takes_files(queue.store)


@pytest.mark.parametrize("again", [True, False])
async def test_nor_one_whose_last_job_puts_a_file_while_it_is_waited_for(
    queue: Queue, files: PayloadFiles, monkeypatch: pytest.MonkeyPatch, *, again: bool
) -> None:
    """It was looked through before that, and is so once more when nothing is in flight. The control: as a mover asked
    that had been told once that there are no files.
    """
    looks = list[str]()

    async def counted(store: Store, run: RunRef) -> bool:
        looks.append(run)
        return await pages.has_files(store, run)

    monkeypatch.setattr(moving, "has_files", counted)
    held = await queue.hold(Stage.RUN)
    for _ in range(3):
        assert await moving.depart(queue.store, RUN, "b", files=False) == {"jobs": 1}
    assert len(looks) == 1, "all of a run is not looked through at each try"
    file = await put(queue, held)
    await finish(queue, await commit(queue, held, file), file)
    await queue.settle()
    if again:
        with pytest.raises(PayloadUnwritten, match="cell b has no directory"):
            await moving.depart(queue.store, RUN, "b", files=False)
    else:
        assert isinstance(await moving.depart(queue.store, RUN, "b"), DepartedRun)
    assert (await moving.whereabouts(queue.store, RUN)).state == ("here" if again else "left")


@pytest.mark.parametrize("whole", [False, True])
async def test_a_cell_without_a_directory_gives_away_what_names_no_file(queue: Queue, *, whole: bool) -> None:
    """The control: a record whose whole text is a file's name may have one, that another host sees."""
    held, name = await queue.hold(Stage.EVAL), f"file:5:{0:064x}"
    queue.store.payloads = None
    note = name if whole else f"it printed {name} and ended"
    await queue.store.finish([Finish(held, Outcome.COMPLETED, record(JOB, note=note))])
    await queue.settle()
    departure = await departed(queue)
    if whole:
        with pytest.raises(PayloadUnavailable, match="knows no directory"):
            await pages.page(queue.store, RUN, departure, "")
    else:
        assert (await pages.page(queue.store, RUN, departure, "")).after is None
