"""The arithmetic of the chaos bench, and its disturbed disk and clock."""

import os
import subprocess
import sys
from pathlib import Path

from bench.chaos import account, durability, page
from bench.chaos.account import Injury, Mark
from bench.chaos.client import Entry, Journal, read
from bench.chaos.disturb import Disturbance
from bench.chaos.ours import Row


def test_a_sample_without_its_reward_is_lost_and_a_second_cursor_is_a_duplicate() -> None:
    entries = [
        Entry(at=0, group="whole", cursor="1-0", good=8),
        Entry(at=1, group="whole", cursor="2-0", good=8),
        Entry(at=2, group="broken", cursor="3-0", good=7),
    ]
    assert account.lost(["whole", "broken", "missing"], entries) == 0 + 1 + 8
    assert account.duplicated(entries) == 8
    assert durability.twice(entries) == 1


def test_recovery_lasts_until_the_last_job_that_a_fault_met_has_ended() -> None:
    marks = [Mark("begin", "a", 1), Mark("begin", "a", 5), Mark("end", "a", 9), Mark("begin", "b", 4)]
    assert account.recovery_s(marks, [Injury(2, 3), Injury(4, 6), Injury(20, 21)]) == [6, None, None]
    assert account.recovery_s(marks[:3], [Injury(0.5, 0.6), Injury(10, 11)]) == [0.0, 0.0]
    assert account.doubled(marks) == 1


def test_a_journal_whose_writer_was_killed_in_a_line_is_read_up_to_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.write(Entry(at=1, batch=0))
    with journal.file.open("ab") as file:
        file.write(b'{"at":2,"ba')
    assert read(journal.file) == [Entry(at=1, batch=0)]


def test_a_disturbed_process_has_another_clock_and_its_host_keeps_what_it_synced(tmp_path: Path) -> None:
    disturbance, directory = Disturbance(tmp_path / "page"), tmp_path / "appendonlydir"
    directory.mkdir()
    disturbance.set_clock(3600)
    program = (
        "import os, time; print(time.time()); f = open('appendonlydir/a.incr.aof', 'wb', 0);"
        "f.write(b'synced'); os.fdatasync(f.fileno()); f.write(b' and not')"
    )
    environment = {**os.environ, **disturbance.environment}
    said = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=tmp_path, capture_output=True, check=True
    )
    written = (directory / "a.incr.aof").stat().st_mtime
    assert abs(float(said.stdout) - written - 3600) < 600
    assert disturbance.lose_what_was_not_synced(tmp_path) == len(" and not")
    assert (directory / "a.incr.aof").read_bytes() == b"synced"


def test_the_page_sums_what_was_measured() -> None:
    row = Row(
        system="prorl_mq", kind="worker killed", jobs=1000, faults=3, lost=0, duplicated=0, doubled=2, left_over=0,
        recovery_median_s=1.0, recovery_worst_s=None, seconds=9.0, load=1.0,
    )  # fmt: skip
    text = page.page([row, row], {"cores": 2, "cpu": "cpu", "python": "3.11"})
    assert "| worker killed | 1,000 | 3 | 0 | 0 | 2 | 0 | 1.0 / never s |" in text
    assert "In all 2,000 jobs and 6 faults: 0 lost, 0 duplicated, 0 left over." in text
