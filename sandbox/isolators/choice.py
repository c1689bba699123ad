"""The default kind of sandbox on a machine: Apptainer if it works there, else bubblewrap.

For code that nobody trusts it is Apptainer, with limits that are hard, or none: bubblewrap shows the host's /usr, and
shares the pages of the host's set-user-id programs.
"""

from pathlib import Path

import msgspec

from sandbox.errors import SandboxError, SandboxUnavailable
from sandbox.isolators import apptainer, bubblewrap
from sandbox.isolators.kinds import make_provider
from sandbox.lifetime import cgroup
from sandbox.protocol import SandboxSpec

AUTO, UNTRUSTED = "auto", "untrusted"
OWNER = "choice"  # no service's, so no service's sweep takes it away meanwhile


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """A kind, and a sentence for the user."""

    kind: str
    why: str


async def choose(state_dir: Path, tools_dir: Path | None = None, kind: str = AUTO) -> Choice:
    """Makes a sandbox and destroys it: nothing else says whether kernel, configuration and image go together.

    `kind` is `AUTO` or `UNTRUSTED`. Raises `SandboxUnavailable` where there is none for code that nobody trusts.
    """
    groups = cgroup.delegated()
    if kind == UNTRUSTED and groups is None:
        raise SandboxUnavailable(f"sandboxes for untrusted code need hard limits: {cgroup.SOFT}. {cgroup.MAKE_HARD}")
    try:
        problem = await trial(apptainer.KIND, state_dir, tools_dir)
    except SandboxUnavailable as error:
        problem = str(error)
    if kind == UNTRUSTED and groups is not None:
        if problem:
            raise SandboxUnavailable(
                "sandboxes for untrusted code are Apptainer's, for bubblewrap shows the host's /usr, and Apptainer "
                f"does not work here: {problem}"
            )
        return Choice(kind=apptainer.KIND, why=f"sandboxes use Apptainer, and {groups.said}")
    if problem:
        why = f"sandboxes use bubblewrap, for Apptainer does not work here: {problem}"
        return Choice(kind=bubblewrap.KIND, why=why)
    return Choice(kind=apptainer.KIND, why="sandboxes use Apptainer")


async def trial(kind: str, state_dir: Path, tools_dir: Path | None = None) -> str:
    """Why no sandbox of this kind can be made now; empty: one was made.

    Raises `SandboxUnavailable` for a kind that this machine cannot run.
    """
    provider = make_provider(kind, node=OWNER, state_dir=state_dir, tools_dir=tools_dir)
    try:
        sandbox = await provider.create(SandboxSpec(owner=OWNER))
        await sandbox.close()
    except (SandboxError, OSError) as error:  # a full disk is no SandboxError
        return " ".join(str(error).split())
    finally:
        await provider.aclose()
    return ""
