"""Control groups of both versions hold a sandbox, where they are delegated to a user."""

import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cgroups.machine import GUEST, Archive, boot, faults

fits = sys.version_info[:2] == (3, 11) and platform.machine() == "x86_64"
GOOD: dict[str, dict[str, Any]] = {
    "delegated": {"version": 1, "controllers": ["memory", "pids", "cpu"]},
    "delegated hidden": {"done": False, "exit_code": 137, "answers": True, "peak_mib": 99, "left": []},
    "not ours": {"version": 0, "controllers": []},
    "not ours hidden": {"done": True, "exit_code": 0, "answers": True, "peak_mib": 0, "left": []},
    "delegated cpu": {"share": 0.8},
    "not ours cpu": {"share": 0.2},
}


@pytest.mark.skipif(not fits, reason="the guest's Python is Debian's 3.11 for x86_64, and takes our msgspec")
@pytest.mark.skipif(
    not (GUEST / ".complete").exists() and not os.environ.get("CI"), reason="no virtual machine: run `make guest`"
)
@pytest.mark.timeout(900)
def test_delegated_groups_hold_what_the_watchdog_cannot_see(tmp_path: Path) -> None:
    """Version 2; `tests/sandbox/test_cgroup.py` has what the machine itself has, as root in CI version 1.

    `make test-cgroups` has both versions, and all cases: sockets, forks and CPU time, too.
    """
    found = boot(2, tmp_path, short=True)
    assert faults(2, found) == [], (tmp_path / "console").read_text()[-3000:]


def test_results_that_are_as_they_should_be_have_no_faults() -> None:
    assert faults(1, GOOD) == []


@pytest.mark.parametrize(
    ("case", "change"),
    [
        ("delegated", {"version": 0}),
        ("delegated hidden", {"done": True}),
        ("delegated hidden", {"answers": False}),
        ("delegated hidden", {"peak_mib": 300}),
        ("delegated hidden", {"left": ["/sys/fs/cgroup/x"]}),
        ("not ours hidden", {"done": False}),
        ("delegated cpu", {"share": 0.25}),
    ],
)
def test_each_other_result_is_a_fault(case: str, change: dict[str, object]) -> None:
    assert len(faults(1, {**GOOD, case: {**GOOD[case], **change}})) == 1, json.dumps(change)


def test_a_machine_that_told_nothing_has_faults() -> None:
    assert len(faults(2, {})) == 5


def test_a_directory_comes_before_what_lies_in_it() -> None:
    made = Archive()
    made.add("a/b/c", 0o100644, b"text")
    written = made.written()
    assert written.index(b"a\0") < written.index(b"a/b\0") < written.index(b"a/b/c\0")
    assert len(written) % 4 == 0
