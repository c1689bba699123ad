"""The place of a rehearsal: this machine's sandboxes, of the kind that is asked for or works here."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from prorl_mq.settings import Setting
from sandbox.isolators.choice import AUTO
from sandbox.protocol import SandboxProvider
from workers.node.sandboxes import chosen, own_provider
from workers.settings import default_node

SANDBOX = Setting("--sandbox", "auto, apptainer, bubblewrap, local, remote or none", default=AUTO)


@asynccontextmanager
async def provider_at(kind: str, state_dir: Path, *, needed: bool = True) -> AsyncIterator[SandboxProvider | None]:
    """None where none is needed or wanted. Raises `SandboxError`, and `ConfigurationError` for an unknown kind."""
    kind = await chosen(kind, state_dir) if needed else "none"
    provider = None if kind == "none" else own_provider(kind, node=default_node(), state_dir=state_dir)
    try:
        yield provider
    finally:
        if provider is not None:
            await provider.aclose()
