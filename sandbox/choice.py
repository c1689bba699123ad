"""Which kind of sandbox a machine gets where nobody has said: Apptainer if it works there, else bubblewrap."""

from pathlib import Path

import msgspec

from sandbox import apptainer, bubblewrap
from sandbox.errors import SandboxError
from sandbox.protocol import SandboxSpec
from sandbox.providers import make_provider

AUTO = "auto"
TRIES = 2  # a sweep that runs at the same moment may take one away, for no job owns it
OWNER = "choice"


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """A kind, and a sentence for the user."""

    kind: str
    why: str


async def choose(state_dir: Path, tools_dir: Path | None = None) -> Choice:
    """Makes a sandbox and destroys it: nothing else says whether kernel, configuration and image go together."""
    problem = ""
    for _ in range(TRIES):
        try:
            await _make_one(state_dir, tools_dir)
        except SandboxError as error:
            problem = " ".join(str(error).split())
        else:
            return Choice(kind=apptainer.KIND, why="sandboxes use Apptainer")
    return Choice(kind=bubblewrap.KIND, why=f"sandboxes use bubblewrap, for Apptainer does not work here: {problem}")


async def _make_one(state_dir: Path, tools_dir: Path | None) -> None:
    provider = make_provider(apptainer.KIND, node=OWNER, state_dir=state_dir, tools_dir=tools_dir)
    try:
        sandbox = await provider.create(SandboxSpec(owner=OWNER))
        await sandbox.close()
    finally:
        await provider.aclose()
