"""The place of a rehearsal: this machine's sandboxes, of the kind that is asked for or works here."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from prorl_mq.settings import Setting
from sandbox.isolators.choice import AUTO
from workers.node.sandboxes import chosen, own_provider
from workers.rehearsal.stages import Rehearsal, rehearsing
from workers.settings import default_node

SANDBOX = Setting("--sandbox", "auto, apptainer, bubblewrap, local or none", default=AUTO)


@asynccontextmanager
async def rehearsal_at(
    kind: str, state_dir: Path, *, needs_sandbox: bool = True, model: Path | None = None
) -> AsyncIterator[Rehearsal]:
    """Raises `SandboxError` and `ConfigurationError` where there are none of the kind."""
    kind = await chosen(kind, state_dir) if needs_sandbox else "none"
    provider = None if kind == "none" else own_provider(kind, node=default_node(), state_dir=state_dir)
    try:
        async with rehearsing(provider, model) as rehearsal:
            yield rehearsal
    finally:
        if provider is not None:
            await provider.aclose()
