"""Hard limits for all of a sandbox together, where the kernel's control groups (version 2) are delegated to us.

That is so when this process lives in a subgroup of a group that it may divide, and that has no processes of its own
(systemd: `Delegate=yes` with `DelegateSubgroup=`). Elsewhere the server's watchdog is all there is.
"""

import contextlib
import os
import time
from pathlib import Path

from sandbox.protocol import Limits

CONTROLLERS = ("memory", "pids")
SPARE_PROCESSES = 32  # the server's threads and the isolator are in the group, too
ENTER = 'echo 0 >"$0/cgroup.procs" && exec "$@"'
EMPTY_S = 10.0


def delegated() -> Path | None:
    """The group in which sandboxes may be made; None where there is none."""
    own = own_group(Path("/proc/self/cgroup").read_text("utf-8"), Path("/proc/self/mountinfo").read_text("utf-8"))
    if own is None:
        return None
    group = own.parent
    with contextlib.suppress(OSError):
        offered = (group / "cgroup.controllers").read_text("utf-8").split()
        writable = all(os.access(group / name, os.W_OK) for name in (".", "cgroup.procs", "cgroup.subtree_control"))
        if writable and set(CONTROLLERS) <= set(offered) and not (group / "cgroup.procs").read_text("utf-8"):
            (group / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in CONTROLLERS), "utf-8")
            return group
    return None


def own_group(cgroup: str, mountinfo: str) -> Path | None:
    """The directory of a process's group, from its files `cgroup` and `mountinfo`."""
    paths = [line[3:] for line in cgroup.splitlines() if line.startswith("0::")]
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        root, mounted = before.split()[3:5]
        if after.startswith("cgroup2 ") and paths and paths[0].startswith(root) and paths[0] != root:
            return Path(mounted, paths[0][len(root) :].lstrip("/"))
    return None


def make(group: Path, limits: Limits) -> None:
    """A group for one sandbox. What its files take counts as memory, for they lie in memory. Raises `OSError`."""
    group.mkdir()
    (group / "memory.max").write_text(str(limits.memory_bytes + limits.disk_bytes), "utf-8")
    (group / "pids.max").write_text(str(limits.processes + SPARE_PROCESSES), "utf-8")
    with contextlib.suppress(FileNotFoundError):  # of a kernel that does not account for swap
        (group / "memory.swap.max").write_text("0", "utf-8")


def entering(group: Path) -> list[str]:
    """What goes before a command line, so that the command runs in the group from its first moment."""
    return ["/bin/sh", "-c", ENTER, str(group)]


def remove(group: Path) -> None:
    """Kills what is left in a group, and removes it. Blocks until it is empty; usually it is."""
    with contextlib.suppress(FileNotFoundError):
        (group / "cgroup.kill").write_text("1", "utf-8")
        deadline = time.monotonic() + EMPTY_S
        while True:
            try:
                group.rmdir()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.005)  # its last process is on its way out; an event would need a watch on its file
            else:
                return
