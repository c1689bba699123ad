"""Control groups: found where they are delegated, and used there."""

import errno
import os
import secrets
import signal
import subprocess
from pathlib import Path

import pytest

from sandbox.errors import SandboxError, SandboxGone, SandboxOverrun, SandboxStartFailed
from sandbox.lifetime import cgroup, label
from sandbox.protocol import SandboxLimits, SandboxSpec
from tests.sandbox.conftest import ISOLATED, WITHOUT_PYTHON, Create

MOUNTS = """\
22 1 0:20 / /proc rw - proc proc rw
30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate
"""


@pytest.mark.parametrize(
    ("own", "mounts", "expected"),
    [
        ("0::/system.slice/unit/workers\n", MOUNTS, "/sys/fs/cgroup/system.slice/unit/workers"),
        ("4:memory:/unit\n0::/unit/workers\n", MOUNTS, "/sys/fs/cgroup/unit/workers"),
        ("0::/unit/workers\n", MOUNTS.replace("0:26 /", "0:26 /unit"), "/sys/fs/cgroup/workers"),
        ("0::/\n", MOUNTS, None),
        ("0::/units\n", MOUNTS.replace("0:26 /", "0:26 /unit"), None),
        ("0::/../unit/workers\n", MOUNTS, None),
        ("0::/unit/workers\n", MOUNTS.splitlines()[0], None),
        ("4:memory:/unit\n", MOUNTS, None),
    ],
)
def test_the_group_of_a_process_is_found(own: str, mounts: str, expected: str | None) -> None:
    assert cgroup.own_group(own, mounts) == (Path(expected) if expected else None)


VERSION_1 = """\
30 23 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
31 23 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
32 23 0:28 /job /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
"""


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (
            "5:cpu,cpuacct:/\n4:memory:/unit\n3:pids:/job/step\n0::/\n",
            {"memory": "memory/unit", "pids": "pids/step", "cpu": "cpu,cpuacct"},
        ),
        ("4:memory:/unit\n3:pids:/other\n", {"memory": "memory/unit"}),
        ("4:memory:/unit\n3:pids:/jobs/step\n", {"memory": "memory/unit"}),
        ("4:memory:/../..\n3:pids:/job\n", {"pids": "pids"}),
        ("0::/unit\n", {}),
    ],
)
def test_the_groups_of_version_1_are_those_of_the_process_itself(own: str, expected: dict[str, str]) -> None:
    """Never the topmost: whoever goes there leaves the limits that it is under."""
    assert cgroup.own_groups(own, VERSION_1) == {name: Path("/sys/fs/cgroup", path) for name, path in expected.items()}


def contents(path: Path) -> str:
    return path.read_text()


def is_there(path: Path) -> bool:
    return path.exists()


HIDDEN = """
import mmap
kept = []
for _ in range(24):
    block = mmap.mmap(-1, 16 << 20)
    for offset in range(0, 16 << 20, 4096):
        block[offset] = 1
    block.madvise(mmap.MADV_DONTNEED)
    kept.append(block)
print("done")
"""
LIMITS = SandboxLimits(memory_bytes=100 << 20, disk_bytes=50 << 20)
LIMIT_FILES = {1: "memory.limit_in_bytes", 2: "memory.max"}
groups = cgroup.delegated()


@pytest.mark.anyio
@pytest.mark.skipif(groups is None, reason="no control groups can be made here: `make test-cgroups` does it elsewhere")
@pytest.mark.parametrize("kind", ISOLATED, indirect=True)
async def test_memory_that_a_watchdog_cannot_see_is_limited_in_control_groups(
    create: Create, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel ends what the agent started, not the server. Without groups the program has all that it wants."""
    sandbox = await create(limits=LIMITS)
    made = label.read(Path(sandbox.handle.directory))
    assert made is not None
    assert groups is not None
    places = [Path(each) for each in made.cgroups]
    assert contents(places[0] / LIMIT_FILES[groups.version]) == f"{(150 << 20) + cgroup.SPARE_BYTES}\n"
    result = await sandbox.run(["python3", "-c", HIDDEN], timeout_s=60)
    assert (result.exit_code, result.stdout, result.timed_out) == (137, b"", False)
    assert (await sandbox.bash("echo on")).output == "on\n"
    await sandbox.close()
    assert not any(map(is_there, places))
    monkeypatch.setattr(cgroup, "join", lambda _groups, _directory, made, _spec: (made, []))
    unlimited = await create(limits=LIMITS)
    assert (await unlimited.run(["python3", "-c", HIDDEN], timeout_s=60)).stdout == b"done\n"


@pytest.mark.anyio
@pytest.mark.skipif(groups is None, reason="no control groups can be made here: `make test-cgroups` does it elsewhere")
@pytest.mark.parametrize("kind", [*ISOLATED, *WITHOUT_PYTHON], indirect=True)
async def test_whatever_runs_in_a_sandbox_is_in_its_groups(create: Create) -> None:
    """Also the server that stands outside, and what it starts."""
    sandbox = await create(limits=LIMITS)
    made = label.read(Path(sandbox.handle.directory))
    assert made is not None
    await sandbox.bash("sleep 300 & until grep -q sleep /proc/$!/comm; do :; done")
    for place in made.cgroups:
        pids = contents(Path(place, "cgroup.procs")).split()
        assert str(made.server_pid or made.pid) in pids
        assert "sleep" in {contents(Path("/proc", pid, "comm")).strip() for pid in pids}


@pytest.mark.anyio
@pytest.mark.skipif(groups is None, reason="no control groups can be made here: `make test-cgroups` does it elsewhere")
@pytest.mark.parametrize("kind", ISOLATED, indirect=True)
async def test_a_start_that_fails_leaves_no_group(create: Create, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[str] = []

    def fails(argv: list[str], **_: object) -> int:
        places.extend(word for word in argv[: argv.index("--")] if word.startswith("/sys"))
        assert all(map(is_there, map(Path, places)))
        raise OSError("no process more")

    monkeypatch.setattr(f"sandbox.isolators.{kind}.launch", fails)
    with pytest.raises(SandboxStartFailed, match="no process more"):
        await create(limits=LIMITS)
    assert len(places) >= 1
    assert not any(map(is_there, map(Path, places)))


@pytest.mark.anyio
@pytest.mark.skipif(groups is None, reason="no control groups can be made here: `make test-cgroups` does it elsewhere")
@pytest.mark.parametrize("kind", ["bubblewrap"], indirect=True)
async def test_a_kernel_may_lack_a_limit_that_is_only_wanted(create: Create, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as that of swap. The control is one that is needed."""
    monkeypatch.setattr("sandbox.lifetime.cgroup._LIMITS", dict.fromkeys((1, 2), lambda _: {"memory.no_such?": 0}))
    assert (await (await create(limits=LIMITS)).bash("echo on")).output == "on\n"
    monkeypatch.setattr("sandbox.lifetime.cgroup._LIMITS", dict.fromkeys((1, 2), lambda _: {"memory.no_such": 0}))
    with pytest.raises(SandboxStartFailed):
        await create(limits=LIMITS)


@pytest.mark.skipif(groups is None, reason="no control groups can be made here: `make test-cgroups` does it elsewhere")
def test_an_old_group_that_nobody_knows_is_removed_if_nothing_runs_in_it() -> None:
    """As where a node's scratch was emptied. The controls are one that has just been made, and one with a process."""
    assert groups is not None
    parent = groups.directories["pids"]
    old, used, new = (parent / f"{cgroup.PREFIX}{secrets.token_hex(8)}" for _ in range(3))
    for each in (old, used, new):
        each.mkdir()
    command = [*cgroup.entering([str(used)]), "/bin/sh", "-c", "echo in; read -r _"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"in\n"
            for each in (old, used):
                os.utime(each, (0, 0))
            cgroup.clear(groups)
            assert [each.exists() for each in (old, used, new)] == [False, True, True]
        finally:
            cgroup.remove([old, used, new])


def test_root_divides_no_group_that_is_not_said_to_be_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may write to all of systemd's slices. What a user may write to is the user's."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert not cgroup.given(tmp_path)
    os.setxattr(tmp_path, cgroup.DELEGATED, b"1")
    assert cgroup.given(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert cgroup.given(tmp_path / "another")


def test_what_is_no_control_group_is_not_taken_for_one(tmp_path: Path) -> None:
    """Such as a file system that covers one: the limits would be mere files."""
    (tmp_path / "state").mkdir()
    directory, made = label.make_directory(tmp_path / "state", owner="o", kind="bubblewrap", node="n")
    covered = cgroup.ControlGroups(version=1, directories=dict.fromkeys(cgroup.WANTED, tmp_path))
    with pytest.raises(FileNotFoundError):
        cgroup.join(covered, directory, made, SandboxSpec(owner="o"))
    assert [each.name for each in tmp_path.iterdir()] == ["state"]


@pytest.mark.anyio
@pytest.mark.skipif(groups is None, reason="no control groups can be made here: `make test-cgroups` does it elsewhere")
@pytest.mark.parametrize("kind", ["bubblewrap"], indirect=True)
async def test_a_sandbox_that_the_kernel_ends_for_its_own_limit_says_so(
    create: Create, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server itself takes the memory here. Without groups it refuses, and lives on."""
    sandbox = await create(limits=LIMITS)
    with pytest.raises(SandboxOverrun, match="took all the memory"):
        await sandbox.write_file("file", bytes(250 << 20))
    await sandbox.close()
    monkeypatch.setattr(cgroup, "join", lambda _groups, _directory, made, _spec: (made, []))
    unlimited = await create(limits=LIMITS)
    with pytest.raises((OSError, SandboxError)):
        await unlimited.write_file("file", bytes(250 << 20))
    assert (await unlimited.bash("echo on")).output == "on\n"


@pytest.mark.anyio
@pytest.mark.skipif(groups is None, reason="no control groups can be made here: `make test-cgroups` does it elsewhere")
@pytest.mark.parametrize("kind", ["bubblewrap"], indirect=True)
async def test_a_sandbox_that_is_killed_long_after_it_took_too_much_does_not_say_so(create: Create) -> None:
    sandbox = await create(limits=LIMITS)
    made = label.read(Path(sandbox.handle.directory))
    assert made is not None
    result = await sandbox.run(["python3", "-c", HIDDEN], timeout_s=60)
    assert (result.exit_code, b"over the memory limit" in result.stderr) == (137, True)
    assert cgroup.overruns(made.cgroups) >= 1
    assert (await sandbox.bash("echo on")).output == "on\n"
    os.kill(sandbox.handle.pid, signal.SIGKILL)
    with pytest.raises(SandboxGone) as gone:
        await sandbox.bash("echo on")
    assert type(gone.value) is SandboxGone


ENDED = {"memory.oom_control": "under_oom 0\noom_kill 3\n"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"memory.events": "oom 2\noom_kill 3\n"}, 3),
        ({"memory.events": "oom 0\noom_kill 3\n"}, 0),
        ({**ENDED, "memory.max_usage_in_bytes": "8388608\n", "memory.limit_in_bytes": "8388608\n"}, 3),
        ({**ENDED, "memory.max_usage_in_bytes": "4194304\n", "memory.limit_in_bytes": "8388608\n"}, 0),
        ({**ENDED, "memory.memsw.max_usage_in_bytes": "9\n", "memory.memsw.limit_in_bytes": "9\n"}, 3),
        ({"pids.max": "3\n"}, 0),
    ],
)
def test_what_the_node_ends_for_its_own_memory_is_no_overrun(
    files: dict[str, str], expected: int, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert cgroup.overruns([str(tmp_path), str(tmp_path / "gone")]) == expected


@pytest.mark.parametrize("left", [True, False])
def test_an_overrun_is_seen_whether_or_not_a_descriptor_was_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: bool
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.EMFILE, "no descriptor is left")

    events = tmp_path / "memory.events"
    events.write_text("oom 0\noom_kill 0\n")
    with monkeypatch.context() as context:
        if not left:
            context.setattr(os, "open", full)
        seen = cgroup.Overruns([str(tmp_path)])
    assert seen.count() == 0
    events.write_text("oom 1\noom_kill 1\n")
    assert seen.count() == 1
