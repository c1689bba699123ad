"""Finds sandboxes by their labels, and destroys those that nobody owns any more."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from sandbox import destruction, label
from sandbox.errors import SandboxError

STALE_S = 60.0


async def sweep(state_dir: Path, keep: Callable[[str], bool], *, node: str | None = None) -> list[str]:
    """Destroys every sandbox under `state_dir` whose owner is not kept, and what dead ones left; answers their ids.

    `node` restricts it to one node's sandboxes: give it where nodes share `state_dir`, for processes of another node
    cannot be seen from here. A sandbox that its living maker is still bringing up is left alone. One that cannot be
    destroyed does not keep the others from it; its error is raised afterwards.
    """
    found = await asyncio.to_thread(label.labelled, state_dir)
    ours = [(path, made) for path, made in found if node in (None, made.node) and not made.unfinished]
    handles = [label.handle_of(path, made) for path, made in ours if not (made.alive and keep(made.owner))]
    outcomes = await asyncio.gather(*map(destruction.destroy, handles), return_exceptions=True)
    await asyncio.to_thread(_sweep_unlabelled, state_dir)
    failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    if failures:
        raise SandboxError("; ".join(str(failure) for failure in failures)) from failures[0]
    return [handle.sandbox_id for handle in handles]


def _sweep_unlabelled(state_dir: Path) -> None:
    """Directories whose maker died before the label, or whose removal was cut short; young ones may be at work."""
    with contextlib.suppress(FileNotFoundError):
        for directory in label.root(state_dir).iterdir():
            with contextlib.suppress(FileNotFoundError):
                known = not directory.name.startswith(".") and label.read(directory) is not None
                if not known and time.time() - directory.stat().st_mtime > STALE_S:
                    label.remove(directory)
