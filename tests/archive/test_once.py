"""Each group is in exactly one committed file, whoever is killed, and however many write."""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from prorl_mq.archive import folder, table
from prorl_mq.archive.folder import Keeping
from prorl_mq.archive.shelf import Shelf
from prorl_mq.archive.table import WholeGroup
from prorl_mq.cli.kept import archive
from prorl_mq.duties.archiving import writer
from prorl_mq.duties.archiving.turns import Archiving
from prorl_mq.duties.archiving.writer import GroupWriter
from prorl_mq.schema.messages import GroupRecord, Outcome, SampleRecord, Verdict
from prorl_mq.store.archive import waiting
from tests.archive.groups import acknowledged, close, trajectory, written
from tests.support.queue import RUN, Queue

KEEPING = Keeping(days=30, bytes=1 << 40)
NOW_MS = 1_700_000_000_000
HOUR_S = 3600.0
WRITES = """
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO
from prorl_mq.archive.shelf import Shelf
from prorl_mq.duties.archiving.writer import GroupWriter
from tests.archive.test_once import KEEPING, NOW_MS, RUN, whole

print("ready", flush=True)
sys.stdin.readline()
writer = GroupWriter(Shelf(Path(sys.argv[1]), "t"))
for start in range(0, 60, 3):
    groups = [whole(f"g{number}") for number in range(start, start + 6)]
    writer.write(RUN, groups, KEEPING, now_ms=NOW_MS, data="mark")
"""


def whole(name: str) -> WholeGroup:
    job = f"r:{name}:0"
    sample = SampleRecord(job_id=job, index=0, outcome=Outcome.COMPLETED, reward=1.0)
    record = GroupRecord(run_id="r", batch_id="b", group_id=name, task_id="t", data_source="s",
                         verdict=Verdict.ACCEPTED, samples=[sample], n=1)  # fmt: skip
    return WholeGroup(record, {job: trajectory()})


def contents(shelf: Shelf) -> Counter[str]:
    """How often each group is in a committed file, as anybody who reads all of them sees it."""
    files = shelf.folder("acme", "r").files()
    return Counter(place.summary.group_id for file in files for place in table.footer(file.path).groups)


def test_of_two_writers_that_have_seen_the_same_files_the_second_leaves_out_what_the_first_wrote(shelf: Shelf) -> None:
    first, second = GroupWriter(shelf), GroupWriter(shelf)
    for each in (first, second):
        each.write(RUN, [whole("known")], KEEPING, now_ms=NOW_MS, data="mark")
    assert first.write(RUN, [whole("a"), whole("b")], KEEPING, now_ms=NOW_MS, data="mark") == 2
    assert second.write(RUN, [whole("b"), whole("c")], KEEPING, now_ms=NOW_MS, data="mark") == 1
    assert contents(shelf) == Counter(["known", "a", "b", "c"])


def test_a_writer_that_does_not_give_way_would_write_twice(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: with numbers that are simply free ones, what both have is there twice."""

    def anywhere(self: folder.RunFolder, number: int, write: Callable[[IO[bytes]], None]) -> bool:
        numbers = {each.number for each in self.files()}
        return original(self, next(each for each in range(number, 99) if each not in numbers), write)

    original = folder.RunFolder.commit
    monkeypatch.setattr(folder.RunFolder, "commit", anywhere)
    first, second = GroupWriter(shelf), GroupWriter(shelf)
    for each in (first, second):
        each.write(RUN, [whole("known")], KEEPING, now_ms=NOW_MS, data="mark")
    for each in (first, second):
        each.write(RUN, [whole("a")], KEEPING, now_ms=NOW_MS, data="mark")
    assert contents(shelf)["a"] == 2


def test_a_name_comes_again_after_a_week_or_from_other_data(shelf: Shelf) -> None:
    each = GroupWriter(shelf)
    assert each.write(RUN, [whole("a")], KEEPING, now_ms=NOW_MS, data="mark") == 1
    assert each.write(RUN, [whole("a")], KEEPING, now_ms=NOW_MS + writer.AGAIN_MS - 1, data="mark") == 0
    assert each.write(RUN, [whole("a")], KEEPING, now_ms=NOW_MS, data="of another server") == 1
    assert GroupWriter(shelf).write(RUN, [whole("a")], KEEPING, now_ms=NOW_MS + writer.AGAIN_MS, data="mark") == 1


def test_two_processes_that_are_killed_at_any_moment_and_started_again_write_each_group_once(shelf: Shelf) -> None:
    kills = 0
    for killed_after_s in [*(0.02 * step for step in range(12)), None]:
        argv = [sys.executable, "-c", WRITES, str(shelf.directory)]
        both = [subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)]
        for each in both:
            assert each.stdout is not None
            assert each.stdin is not None
            each.stdout.readline()
            each.stdin.write(b"\n")
            each.stdin.flush()
        if killed_after_s is not None:
            time.sleep(killed_after_s)  # the moment of the kill is what the test varies
            for each in both:
                each.send_signal(signal.SIGKILL)
                kills += each.wait() == -signal.SIGKILL
        for each in both:
            each.communicate()
        seen = contents(shelf)
        assert not [name for name, times in seen.items() if times > 1]
    assert kills > 4
    assert seen == Counter(f"g{number}" for number in range(63))
    left = shelf.folder("acme", "r").path
    shelf.folder("acme", "r").tidy(time.time() + 2 * folder.STALE_S)
    assert [path.name for path in left.iterdir() if path.name.startswith(folder.NEW)] == []


@pytest.mark.anyio
async def test_groups_that_were_written_and_not_let_go_are_not_written_again(
    queue: Queue, archiving: Archiving, shelf: Shelf
) -> None:
    """As a process that was killed between the two leaves them; and two duties at once."""
    await acknowledged(queue, archiving, "g", "h")
    [one, _] = await waiting.page(queue.store, RUN, limit=9)
    before = [await archiving._read(RUN, one, 0)]
    data = "mark"
    GroupWriter(shelf).write(
        RUN, [each.group for each in before], KEEPING, now_ms=await queue.store.now_ms(), data=data
    )
    await queue.command("HSET", queue.keys.epoch, "payloads", data)
    other = Archiving(queue.store, shelf)
    await asyncio.gather(written(queue, archiving), written(queue, other))
    await other.aclose()
    assert contents(shelf) == Counter(["g", "h"])
    assert (await waiting.state(queue.store)).groups == 0


@pytest.mark.anyio
async def test_a_group_that_comes_back_with_a_lost_second_is_not_written_again(
    queue: Queue, archiving: Archiving, shelf: Shelf
) -> None:
    await archiving.turn()
    await close(queue, "g")
    names = await queue.command("KEYS", "*")
    dumps = {name: await queue.command("DUMP", name) for name in names}
    await queue.ack_all()
    await written(queue, archiving)
    for name, dump in dumps.items():
        if b"archiv" not in name and b"epoch" not in name:
            await queue.command("RESTORE", name, 0, dump, "REPLACE")
    assert await queue.ack_all() == 1
    await written(queue, archiving)
    assert contents(shelf) == Counter(["g"])


def test_old_files_go_and_the_newest_and_young_ones_stay(shelf: Shelf) -> None:
    each, place = GroupWriter(shelf), shelf.folder("acme", "r")
    for number in range(4):
        each.write(RUN, [whole(f"g{number}")], KEEPING, now_ms=NOW_MS, data="mark")
    files, now = place.files(), time.time()
    for number, file in enumerate(files):
        os.utime(file.path, (now, now - (3 - number) * 24 * HOUR_S))
    assert [file.number for file in place.prune(Keeping(days=2, bytes=1 << 40), now)] == [1]
    assert [file.number for file in place.prune(Keeping(days=9, bytes=files[1].bytes), now)] == [2, 3]
    assert place.prune(Keeping(days=9, bytes=1), now + 99 * 24 * HOUR_S) == []
    os.utime(files[3].path, (now, now))
    each.write(RUN, [whole("young")], KEEPING, now_ms=NOW_MS, data="mark")
    assert place.prune(Keeping(days=9, bytes=1), now + folder.YOUNG_S / 2) == []
    assert [file.number for file in place.files()] == [4, 5]


def half(file: IO[bytes]) -> None:
    file.write(b"half a file")


def test_a_file_that_is_none_hides_no_other_and_an_export_names_it(shelf: Shelf, tmp_path: Path) -> None:
    for number, name in enumerate(("a", "b")):
        shelf.folder("acme", "r").commit(2 * number + 2, half)
        GroupWriter(shelf).write(RUN, [whole(name)], KEEPING, now_ms=NOW_MS, data="mark")
    page = shelf.groups("acme", "r", batch=None, after="0", limit=9)
    assert [each.group_id for each in page.groups] == ["b", "a"]
    assert shelf.group("acme", "r", "a") is not None
    given = argparse.Namespace(run="acme:r", out=tmp_path / "out.jsonl", format=None, json=False)
    with pytest.raises(
        table.ArchiveDamaged, match=r"^4 rows are in .*, without .* 2 damaged .*00000002\.parquet.*0004"
    ):
        archive.export(shelf, given)
    assert len(given.out.read_text().splitlines()) == 4


def test_names_that_are_odd_stay_within_the_directory(shelf: Shelf, tmp_path: Path) -> None:
    for name in ("..", ".hidden", "a%2Fb"):
        assert shelf.directory in shelf.folder(name, name).path.resolve().parents
