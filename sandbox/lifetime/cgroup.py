"""Hard limits for all of a sandbox together, where the kernel's control groups (version 2) are delegated to us.

That is so when this process lives in a subgroup of a group that it may divide, and that has no processes of its own
(systemd: `Delegate=yes` with `DelegateSubgroup=`). Elsewhere the server's watchdog is all there is.
"""

import contextlib
import os
import time
from pathlib import Path

import msgspec

from sandbox.lifetime import label
from sandbox.protocol import SandboxLimits

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


def join(
    group: Path | None, directory: Path, made: label.Label, limits: SandboxLimits
) -> tuple[label.Label, list[str]]:
    """A control group for a sandbox, below `group` if there is one: the label with it, and the start of a command line.

    What is started so runs in the group from its first moment. The label knows the group before it exists. What the
    sandbox's files take counts as memory, for they lie in memory. Raises `OSError`.
    """
    if group is None:
        return made, []
    own = group / f"sandbox-{made.sandbox_id}"
    made = msgspec.structs.replace(made, cgroup=str(own))
    label.write(directory, made)
    own.mkdir()
    (own / "memory.max").write_text(str(limits.memory_bytes + limits.disk_bytes), "utf-8")
    (own / "pids.max").write_text(str(limits.processes + SPARE_PROCESSES), "utf-8")
    with contextlib.suppress(FileNotFoundError):  # of a kernel that does not account for swap
        (own / "memory.swap.max").write_text("0", "utf-8")
    return made, ["/bin/sh", "-c", ENTER, str(own)]


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
