"""When the limits of a whole sandbox stop what runs."""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sandbox.host import unprivileged
from sandbox.server.accounting.looking import LookingProc
from sandbox.server.accounting.sockets import UNCOUNTED, SocketBuffers
from sandbox.server.processes import Proc, Process
from sandbox.server.watchdog import REST_S, CountedFiles, Watchdog

LIMITS = {"memory_bytes": 1 << 30, "processes": 40, "disk_bytes": 4 << 20, "wall_s": 60}


class Disk:
    """A watchdog of nothing but files, whose size the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stops = 0
        self.used_bytes = 0
        nothing: Any = SimpleNamespace(
            below=lambda _roots: [], post=lambda _message: None, directory_of_all=Proc().directory_of_all
        )
        settings = {"limits": LIMITS, "scratch": []}
        self.watchdog = Watchdog(settings, nothing, nothing, (), nothing, set, self._stopped)
        monkeypatch.setattr(self.watchdog, "_files_bytes", lambda: self.used_bytes)

    def _stopped(self) -> None:
        self.stops += 1

    def look(self, used_mib: int) -> int:
        """How often anything was stopped since the last time."""
        self.used_bytes, before = used_mib << 20, self.stops
        self.watchdog.look()
        return self.stops - before


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def test_only_what_grows_over_the_disk_limit_is_stopped(disk: Disk) -> None:
    assert [disk.look(used) for used in (4, 5, 5, 6, 6, 3, 5)] == [0, 1, 0, 1, 0, 0, 1]


def test_a_command_is_not_stopped_for_what_the_one_before_wrote_until_its_end(disk: Disk) -> None:
    assert disk.look(5) == 1
    disk.used_bytes = 9 << 20
    with disk.watchdog:
        assert (disk.look(9), disk.look(10)) == (0, 1)


def test_many_commands_do_not_hide_who_writes_beside_them(disk: Disk) -> None:
    assert disk.look(5) == 1
    for used in (6, 7):
        disk.used_bytes = used << 20
        with disk.watchdog:
            pass
    assert disk.look(7) == 1


class Processes:
    """A table of one process, whose CPU time the test says."""

    def __init__(self) -> None:
        self.ticks = 0

    def below(self, _roots: object) -> list[Process]:
        return [
            Process(pid=7, parent=1, group=7, name="sleep", dead=False, threads=1, memory_bytes=1 << 20, space_bytes=1,
                    born=1, cpu_ticks=self.ticks)
        ]  # fmt: skip


def test_what_rests_far_from_its_limits_is_looked_at_less_often(disk: Disk) -> None:
    table, watchdog = Processes(), disk.watchdog
    watchdog._looking, watchdog._proc = table, Proc()  # type: ignore[assignment]
    watchdog._disk_bytes = 8 << 20
    pauses = []
    for ticks, used_mib in ((0, 1), (0, 1), (1, 1), (1, 1), (1, 5), (2, 1)):
        table.ticks, disk.used_bytes = ticks, used_mib << 20
        pauses.append(watchdog.look()[1] >= REST_S)
    assert pauses == [False, True, False, True, False, False]


def test_a_process_is_seen_while_it_lives_and_its_file_is_shut_with_it() -> None:
    looking = LookingProc(Proc())
    files = len(list(Path("/proc/self/fd").iterdir()))
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    try:
        for _ in range(2):
            assert child.pid in {found.pid for found in looking.below((os.getpid(),))}
    finally:
        child.kill()
        child.wait()
    for _ in range(2):
        assert child.pid not in {found.pid for found in looking.below((os.getpid(),))}
    assert child.pid not in looking._kept
    assert len(list(Path("/proc/self/fd").iterdir())) <= files + len(looking._kept)


def test_sockets_that_are_too_few_to_hold_much_are_not_asked_for_and_others_are() -> None:
    buffers = SocketBuffers(Proc())
    buffers.begin()
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with one, other:
        one.send(bytes(60_000))
        few_bytes = 8 * buffers._most_bytes
        assert buffers.held_bytes() >= 60_000
        buffers._counted = lambda: (buffers._own + 8, False)  # type: ignore[method-assign]
        assert buffers.held_bytes(few_bytes) == 0
        for counted in ((buffers._own + 9, False), (buffers._own, True)):
            buffers._counted = lambda counted=counted: counted  # type: ignore[method-assign,misc]
            assert buffers.held_bytes(few_bytes) >= 60_000


@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "control"])
def test_sockets_are_asked_for_where_their_number_was_not_known_at_first(
    monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    """The control is a count from which more are taken than there can be."""
    buffers = SocketBuffers(Proc())
    with monkeypatch.context() as patched:
        patched.setattr(buffers, "_counted", lambda: (UNCOUNTED, True))
        buffers.begin()
    if not guarded:
        buffers._own = UNCOUNTED
    monkeypatch.setattr(buffers, "_counted", lambda: (9, False))
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with one, other:
        one.send(bytes(60_000))
        assert (buffers.held_bytes(8 * buffers._most_bytes) >= 60_000) is guarded


@pytest.mark.parametrize("moved", [True, False], ids=["moved", "shut"])
@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "control"])
def test_a_file_system_is_looked_at_though_the_directory_above_it_is_moved_or_shut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: bool, guarded: bool
) -> None:
    """The control looks at it by its path, by which nobody but root passes a shut directory."""
    above = tmp_path / "above"
    place = above / "place"
    place.mkdir(parents=True)
    nothing: Any = SimpleNamespace(directory_of_all=Proc().directory_of_all)
    settings = {"limits": LIMITS, "scratch": [str(place)]}
    watchdog = Watchdog(settings, nothing, nothing, (), nothing, set, lambda: None)
    if not guarded:
        monkeypatch.setattr(watchdog, "_systems", [str(place)])
        monkeypatch.setattr(os, "fstatvfs", os.statvfs)
    assert watchdog._scratch_bytes() > 0
    above = above.rename(tmp_path / "elsewhere") if moved else above
    above.chmod(0o700 if moved else 0)
    try:
        assert (watchdog._scratch_bytes() > 0) is (guarded or (not moved and os.geteuid() == 0))
    finally:
        above.chmod(0o700)


@contextlib.contextmanager
def nobody(place: Path) -> Iterator[None]:
    """As a user whom a mode keeps out, who owns the place."""
    user = os.geteuid()
    if user == 0:
        for directory, _, _ in os.walk(place):
            os.chown(directory, *unprivileged.identity())
        os.seteuid(unprivileged.identity()[0])
    try:
        yield
    finally:
        os.seteuid(user)


def test_files_are_counted_below_directories_that_are_shut_in_one_another() -> None:
    """And the modes are as they were afterwards."""
    with tempfile.TemporaryDirectory(prefix="pq") as name:
        inner = Path(name, "shut", "inner")
        inner.mkdir(parents=True)
        (inner / "big").write_bytes(bytes(1 << 20))
        with nobody(Path(name)):
            for directory in (inner, inner.parent):
                directory.chmod(0)
            with pytest.raises(PermissionError):  # the control: nobody passes by itself
                (inner / "big").stat()
            assert CountedFiles([])._below(name) >= 1 << 20
            modes = []
            for directory in (inner.parent, inner):
                modes.append(directory.stat().st_mode & 0o777)
                directory.chmod(0o700)
        assert modes == [0, 0]


class Shared(Proc):
    """Processes that share 60 MiB, of which one ends or forks while the shares of the others are read."""

    def __init__(self, *, ends: bool) -> None:
        self.alive = 4 if ends else 1
        self.change = -1 if ends else 1

    def process(self, pid: int) -> Process | None:
        return member(pid) if pid <= self.alive else None

    def read(self, pid: int, name: str) -> str:
        if pid > self.alive:
            raise ProcessLookupError
        share = (60 << 10) // self.alive
        self.alive = min(4, max(0, self.alive + self.change))
        return f"Pss: {share} kB\n"


def member(pid: int) -> Process:
    return Process(pid, 1, pid, "python3", dead=False, threads=1, memory_bytes=60 << 20, space_bytes=1, born=1)


@pytest.mark.parametrize("ends", [True, False], ids=["end", "fork"])
@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "control"])
def test_pages_are_counted_once_though_processes_end_or_fork_meanwhile(disk: Disk, ends: bool, guarded: bool) -> None:
    """The control takes one reading, and for a process that has ended what it had before."""
    proc, living = Shared(ends=ends), [member(pid) for pid in (1, 2, 3, 4)]
    if guarded:
        disk.watchdog._proc = proc
        assert sum(disk.watchdog._shares(living, 64 << 20).values()) <= 64 << 20
    else:
        shares = [proc.share_bytes(each) if each.pid <= proc.alive else each.memory_bytes for each in living]
        assert sum(shares) > 100 << 20
