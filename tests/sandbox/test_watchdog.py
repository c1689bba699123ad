"""When the limits of a whole sandbox stop what runs."""

from types import SimpleNamespace
from typing import Any

import pytest

from sandbox.server.watchdog import Watchdog

LIMITS = {"memory_bytes": 1 << 30, "processes": 40, "disk_bytes": 4 << 20, "wall_s": 60}


class Disk:
    """A watchdog of nothing but files, whose size the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stops = 0
        self.used_bytes = 0
        nothing: Any = SimpleNamespace(below=lambda _roots: [], post=lambda _message: None)
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
