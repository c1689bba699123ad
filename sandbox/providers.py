"""The kinds of sandboxes by name."""

import difflib
from collections.abc import Callable
from pathlib import Path

from sandbox.bubblewrap import BubblewrapProvider
from sandbox.errors import SandboxUnavailable
from sandbox.local import LocalProvider
from sandbox.protocol import SandboxProvider

KINDS: dict[str, Callable[[str, Path, Path | None], SandboxProvider]] = {
    "bubblewrap": BubblewrapProvider,
    "local": LocalProvider,
}


def make_provider(kind: str, *, node: str, state_dir: Path, python_dir: Path | None = None) -> SandboxProvider:
    """A provider for this node. `python_dir` holds IPython for the sandboxes' Python; None means plain cells.

    Raises `SandboxUnavailable` for a kind that is not known, or that this machine cannot run.
    """
    if kind not in KINDS:
        near = difflib.get_close_matches(kind, KINDS, n=1, cutoff=0.4)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise SandboxUnavailable(f"there is no kind of sandbox {kind!r} (there are {', '.join(KINDS)}){hint}")
    return KINDS[kind](node, state_dir, python_dir)
