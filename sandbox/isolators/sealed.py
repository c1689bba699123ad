"""The host's side of the seal: what it asks of a new sandbox, and the filter around a holder.

A holder is the shell that keeps a sandbox open whose server is outside. Code inside could trace it, for it is the same
user's, and act through it. So the isolator sets a filter around it, as the server's own does not reach it.
"""

import json
import os
from pathlib import Path

from sandbox.errors import SandboxUnavailable
from sandbox.server.sealing.calls import FORBIDDEN, MACHINES, MISSING, numbers, unknown
from sandbox.server.sealing.filter import program

WANTED = {"NoNewPrivs": "1", "Seccomp": "2"}
FILTERS = "Seccomp_filters"  # from Linux 5.9 on; a container of the worker may have one, which proves nothing


def holder_filter() -> bytes:
    """As the kernel takes it. Raises `SandboxUnavailable` where no filter is known for this architecture."""
    return program(_machine())


def holder_profile() -> str:
    """As Apptainer takes it, which answers EPERM to whatever is refused.

    Its own threads start behind the filter and fall back from `clone3` on ENOSYS alone, so that one is left out: there
    are no more namespaces to make, see `apptainer_argv`. Raises `SandboxUnavailable`.
    """
    known = numbers(MISSING, _machine()) | numbers(FORBIDDEN, _machine())
    judged = {"unshare", "personality", "socket", "socketpair"}  # it needs none of them, whatever the arguments
    rules = [{"names": sorted({*known, *judged} - {"clone3"}), "action": "SCMP_ACT_ERRNO", "args": []}]
    return json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": rules})


def _machine() -> str:
    machine = os.uname().machine
    if machine not in MACHINES:
        raise SandboxUnavailable(unknown(machine))
    return machine


def unsealed(child_status: str, first: int) -> str:
    """Why a sandbox is not accepted; empty if it is: what a child shows of itself, and the host sees of process 1."""
    try:
        statuses = {"a child": child_status, "process 1": Path(f"/proc/{first}/status").read_text(encoding="utf-8")}
    except OSError as error:
        return f"process 1 cannot be looked at: {error}"
    own = _values(Path("/proc/self/status").read_text(encoding="utf-8")).get(FILTERS, "0")
    for who, status in statuses.items():
        shown = _values(status)
        for name, wanted in WANTED.items():
            if shown.get(name) != wanted:
                return f"{who} shows {name} {shown.get(name)} in /proc, not {wanted}: it is not sealed"
        if int(shown.get(FILTERS, int(own) + 1)) <= int(own):
            return f"{who} has no more filters of system calls than this process ({own}): it is not sealed"
    return ""


def _values(status: str) -> dict[str, str]:
    return dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
