"""The sandboxes of this node's own making, for a worker and for the keeper alike."""

import logging
import os
from pathlib import Path

from sandbox.isolators.choice import AUTO, UNTRUSTED, choose, trial
from sandbox.isolators.kinds import make_provider
from sandbox.protocol import SandboxProvider

log = logging.getLogger("workers")


def tools(state_dir: Path) -> Path:
    """The directory that `prorl-mq install-tools` has filled."""
    return Path(os.environ.get("PRORL_SANDBOX_TOOLS") or state_dir)


async def chosen(kind: str, state_dir: Path) -> str:
    """The kind of sandbox that works here, if none was named. Raises `SandboxUnavailable`."""
    if kind not in {AUTO, UNTRUSTED}:
        return kind
    choice = await choose(state_dir, tools(state_dir), kind)
    log.warning("%s", choice.why)
    return choice.kind


async def tried(kind: str, state_dir: Path) -> None:
    """Says where no sandbox of a named kind can be made now: that may pass, so jobs wait for it. Raises
    `SandboxUnavailable` for a kind that this machine cannot run.
    """
    if problem := await trial(kind, state_dir, tools(state_dir)):
        log.warning("sandboxes of kind %s cannot be made here now, and jobs that need one wait: %s", kind, problem)


def own_provider(kind: str, *, node: str, state_dir: Path) -> SandboxProvider:
    """With the IPython that `prorl-mq install-tools` left, if it did."""
    given = os.environ.get("PRORL_SANDBOX_PYTHON")
    python_dir = Path(given) if given else tools(state_dir) / "sandbox-python"
    return make_provider(
        kind,
        node=node,
        state_dir=state_dir,
        python_dir=python_dir if python_dir.is_dir() else None,
        tools_dir=tools(state_dir),
    )
