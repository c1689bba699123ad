"""Processes of sandboxes whose directory is gone: their creator died half-way, or a helper outlived its sandbox.

They are known by the mark in their environment, which names the directory of their sandbox.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

from sandbox.errors import SandboxError
from sandbox.host import process
from sandbox.lifetime import label

KILLED_S = 30.0


async def end(state_dir: Path) -> list[str]:
    """Kills them with all that they have started; the ids of their sandboxes. Returns when they are dead."""
    found = await asyncio.to_thread(lambda: list(_strays(state_dir)))
    for pid, started, _ in found:
        if not await process.end_with_descendants(pid, started, KILLED_S):
            raise SandboxError(f"process {pid}, which a dead sandbox has left, outlives SIGKILL by {KILLED_S:.0f} s")
    return sorted({sandbox_id for *_, sandbox_id in found})


def _strays(state_dir: Path) -> Iterator[tuple[int, str, str]]:
    """Process, its start time, and the id of the sandbox that it belonged to."""
    root = label.root(state_dir)
    if not root.is_dir():
        return
    sign = f"{label.MARK}={label.mark(state_dir)}".encode()
    for pid in (int(proc.name) for proc in Path("/proc").iterdir() if proc.name.isdigit()):
        started = process.start_time(pid)
        sandbox_id = _sandbox_of(pid, sign) if started is not None else ""
        if started is not None and sandbox_id and not (root / sandbox_id).exists():
            yield pid, started, sandbox_id


def _sandbox_of(pid: int, sign: bytes) -> str:
    with contextlib.suppress(OSError):  # it has ended, or belongs to another user
        for variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if variable.startswith(sign):
                return variable.removeprefix(sign).decode("utf-8", "replace")
    return ""
