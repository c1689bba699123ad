"""Our own sandboxes as a worker has them: through the provider of their kind."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from bench.sandbox.contender import ContenderMissing, Setting
from sandbox.errors import SandboxUnavailable
from sandbox.isolators.kinds import make_provider
from sandbox.protocol import Sandbox, SandboxProvider, SandboxSpec

NODE, SERVICE = "bench", "bench"
SPEC = SandboxSpec(owner="bench")


def provider_of(kind: str, state_dir: Path, tools: Path) -> SandboxProvider:
    """Raises `ContenderMissing` where this machine cannot run the kind."""
    found = tools / "sandbox-python"
    python_dir = found if found.is_dir() else None
    try:
        return make_provider(kind, node=NODE, state_dir=state_dir, tools_dir=tools, python_dir=python_dir)
    except SandboxUnavailable as error:
        raise ContenderMissing(str(error)) from error


@asynccontextmanager
async def sandbox_of(kind: str, setting: Setting, name: str) -> AsyncIterator[Sandbox]:
    """One sandbox, destroyed at the end."""
    provider = provider_of(kind, setting.place(name), setting.tools)
    try:
        sandbox = await provider.create(SPEC)
        try:
            yield sandbox
        finally:
            await sandbox.close()
    finally:
        await provider.aclose()


async def timed(once: Callable[[], Awaitable[object]], count: int) -> list[float]:
    """Seconds of each. By the clock itself: the one of a fast event loop counts milliseconds."""
    found = []
    for _ in range(count):
        began = time.perf_counter()
        await once()
        found.append(time.perf_counter() - began)
    return found
