"""The default kind of sandbox on a machine: Apptainer if it works there, else bubblewrap."""

from pathlib import Path

import msgspec

from sandbox.errors import SandboxError
from sandbox.isolators import apptainer, bubblewrap
from sandbox.isolators.kinds import make_provider
from sandbox.protocol import SandboxSpec

AUTO = "auto"
OWNER = "choice"  # no service's, so no service's sweep takes it away meanwhile


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """A kind, and a sentence for the user."""

    kind: str
    why: str


async def choose(state_dir: Path, tools_dir: Path | None = None) -> Choice:
    """Makes a sandbox and destroys it: nothing else says whether kernel, configuration and image go together."""
    try:
        await _make_one(state_dir, tools_dir)
    except SandboxError as error:
        problem = " ".join(str(error).split())
        why = f"sandboxes use bubblewrap, for Apptainer does not work here: {problem}"
        return Choice(kind=bubblewrap.KIND, why=why)
    return Choice(kind=apptainer.KIND, why="sandboxes use Apptainer")


async def _make_one(state_dir: Path, tools_dir: Path | None) -> None:
    provider = make_provider(apptainer.KIND, node=OWNER, state_dir=state_dir, tools_dir=tools_dir)
    try:
        sandbox = await provider.create(SandboxSpec(owner=OWNER))
        await sandbox.close()
    finally:
        await provider.aclose()
