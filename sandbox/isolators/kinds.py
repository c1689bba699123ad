"""The kinds of sandboxes by name."""

import difflib
import os
from pathlib import Path

from sandbox.errors import SandboxUnavailable
from sandbox.isolators import apptainer, bubblewrap, local
from sandbox.protocol import REMOTE, SandboxProvider
from sandbox.remote.access import access_from

OWN_KINDS = (apptainer.KIND, bubblewrap.KIND, local.KIND)  # of this machine
KINDS = (*OWN_KINDS, REMOTE)


def make_provider(
    kind: str, *, node: str, state_dir: Path, python_dir: Path | None = None, tools_dir: Path | None = None
) -> SandboxProvider:
    """A provider for this node. `python_dir` holds IPython for the sandboxes' Python; None means plain cells.

    `tools_dir` is what ops/sandbox-tools.sh has filled: Apptainer and its base image; None means `state_dir`. The
    environment names the server of remote sandboxes. Raises `SandboxUnavailable` for a kind that is not known, or that
    this machine cannot run.
    """
    match kind:
        case apptainer.KIND:
            return apptainer.ApptainerProvider(node, state_dir, python_dir, tools_dir or state_dir)
        case bubblewrap.KIND:
            return bubblewrap.BubblewrapProvider(node, state_dir, python_dir)
        case local.KIND:
            return local.LocalProvider(node, state_dir, python_dir)
        case "remote":
            from sandbox.remote.provider import RemoteProvider  # aiohttp takes as long to load as all the rest

            return RemoteProvider(node, access_from(os.environ))
        case _:
            near = difflib.get_close_matches(kind, KINDS, n=1, cutoff=0.4)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise SandboxUnavailable(f"there is no kind of sandbox {kind!r} (there are {', '.join(KINDS)}){hint}")
