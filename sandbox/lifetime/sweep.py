"""Finds sandboxes by their labels, and destroys those that no longer have an owner.

Also their strays: processes of a sandbox whose directory is gone, since its creator died half-way or a helper outlived
it. They are known by the mark in their environment, which names the directory of their sandbox.

    python -m sandbox.lifetime.sweep STATE_DIR PID...    # what these dead processes have made
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from sandbox.errors import SandboxError
from sandbox.host import copies, process
from sandbox.lifetime import destroy, label

STALE_S = 60.0  # for directories that nothing is known of
KILLED_S = 30.0


def everybody(owner: str) -> bool:  # noqa: ARG001 - any owner will do
    return True


async def sweep(
    state_dir: Path,
    keep: Callable[[str], bool],
    *,
    node: str | None = None,
    ours: Callable[[str], bool] = everybody,
    makers: Collection[int] | None = None,
) -> list[str]:
    """Destroys every sandbox under `state_dir` whose owner is not kept, and what dead ones left; answers their ids.

    `node` restricts it to one node's sandboxes: give it where nodes share `state_dir`, for processes of another node
    cannot be seen from here. `ours` says by their owner which sandboxes it may touch at all, dead ones too;
    with `makers` it touches those alone that one of these processes has made, and none of a process that lives. A
    sandbox that its living maker is still bringing up is left alone. One that cannot be destroyed does not keep the
    others from it; its error is raised afterwards.
    """
    found = await asyncio.to_thread(label.labelled, state_dir)
    touched = [(path, made) for path, made in found if node in (None, made.node) and ours(made.owner)]
    if makers is not None:
        touched = [(path, made) for path, made in touched if made.maker_pid in makers and not made.maker_alive]
    unowned = [(path, made) for path, made in touched if not (made.unfinished or (made.alive and keep(made.owner)))]
    handles = [label.handle_of(path, made) for path, made in unowned]
    outcomes = await asyncio.gather(*map(destroy.destroy, handles), return_exceptions=True)
    await asyncio.to_thread(_sweep_unlabelled, state_dir, node)
    await asyncio.to_thread(copies.sweep)
    left = await end_strays(state_dir)
    failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    if failures:
        raise SandboxError("; ".join(str(failure) for failure in failures)) from failures[0]
    return sorted({*left, *(handle.sandbox_id for handle in handles)})


def _sweep_unlabelled(state_dir: Path, node: str | None) -> None:
    """Directories whose removal was cut short, or whose maker died before the label. No process lives in them."""
    with contextlib.suppress(FileNotFoundError):
        for directory in label.root(state_dir).iterdir():
            if directory.name.endswith(label.REMOVING) or _abandoned(directory, node):
                label.remove(directory)


def _abandoned(directory: Path, node: str | None) -> bool:
    maker = label.half_made(directory)
    if maker is not None:
        return node in {None, maker[0]} and not maker[1]
    try:
        return label.read(directory) is None and time.time() - directory.stat().st_mtime > STALE_S
    except FileNotFoundError:
        return False


async def end_strays(state_dir: Path) -> list[str]:
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


if __name__ == "__main__":
    asyncio.run(sweep(Path(sys.argv[1]), lambda _: False, makers=frozenset(map(int, sys.argv[2:]))))
