"""The sandboxes of this node's own making, for a worker and for the keeper alike."""

import os
from pathlib import Path

from sandbox.protocol import SandboxProvider
from sandbox.providers import make_provider


def own_provider(kind: str, *, node: str, state_dir: Path) -> SandboxProvider:
    """With the IPython that `make sandbox-tools` left in the state directory, if it did."""
    given = os.environ.get("PRORL_SANDBOX_PYTHON")
    python_dir = Path(given) if given else state_dir / "sandbox-python"
    return make_provider(kind, node=node, state_dir=state_dir, python_dir=python_dir if python_dir.is_dir() else None)
