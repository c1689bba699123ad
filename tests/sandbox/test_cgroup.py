"""Control groups: found where they are delegated, and used there."""

from pathlib import Path

import pytest

from sandbox.lifetime import cgroup, label
from sandbox.protocol import SandboxLimits
from tests.sandbox.conftest import ISOLATED, Create

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
        ("0::/unit/workers\n", MOUNTS.splitlines()[0], None),
        ("4:memory:/unit\n", MOUNTS, None),
    ],
)
def test_the_group_of_a_process_is_found(own: str, mounts: str, expected: str | None) -> None:
    assert cgroup.own_group(own, mounts) == (Path(expected) if expected else None)


def contents(path: Path) -> str:
    return path.read_text()


def is_there(path: Path) -> bool:
    return path.exists()


@pytest.mark.anyio
@pytest.mark.skipif(cgroup.delegated() is None, reason="no control group (version 2) is delegated to this process")
@pytest.mark.parametrize("kind", ISOLATED, indirect=True)
async def test_memory_that_no_process_maps_is_limited_in_a_control_group(create: Create) -> None:
    """A watchdog cannot see it. The kernel ends what the agent started, never the server."""
    sandbox = await create(limits=SandboxLimits(memory_bytes=100 << 20, disk_bytes=50 << 20))
    made = label.read(Path(sandbox.handle.directory))
    assert made is not None
    group = Path(made.cgroup)
    assert contents(group / "memory.max") == f"{150 << 20}\n"
    code = "import os\nfd = os.memfd_create('x')\nwhile True: os.write(fd, bytes(1 << 20))"
    result = await sandbox.run(["python3", "-c", code], timeout_s=60)
    assert (result.exit_code, result.timed_out) == (137, False)
    assert (await sandbox.bash("echo on")).output == "on\n"
    await sandbox.close()
    assert not is_there(group)
