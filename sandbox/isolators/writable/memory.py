"""Directories of an image, copied into a sandbox's memory when it starts: for where nothing else works."""

import asyncio
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sandbox.errors import SandboxError
from sandbox.isolators.bringup import start_failed
from sandbox.isolators.writable.directories import within
from sandbox.lifetime.client import SocketSandbox

COPY_S = 300.0
_ARCHIVE = "/tmp/.copied.tar"  # noqa: S108 - inside


async def fill(sandbox: SocketSandbox, image: Path, places: Sequence[str], owner: str) -> SocketSandbox:
    """Copies each place. If that fails, or is cancelled, the sandbox is destroyed."""
    try:
        for place in places:
            await _copy(sandbox, image, place)
    except BaseException as error:
        await asyncio.shield(sandbox.close())
        if isinstance(error, SandboxError | OSError | tarfile.TarError):
            raise start_failed(owner, f"a directory of its image could not be copied: {error}") from error
        raise
    return sandbox


async def _copy(sandbox: SocketSandbox, image: Path, place: str) -> None:
    source = await asyncio.to_thread(within, image, place)
    with tempfile.TemporaryDirectory(prefix=".copied-", dir=sandbox.handle.directory) as name:
        archive = Path(name, "archive")
        await asyncio.to_thread(_pack, source, archive)
        await sandbox.upload(archive, _ARCHIVE)
    unpack = ["tar", "-x", "-f", _ARCHIVE, "-C", place, "--no-same-owner"]
    for command in (unpack, ["rm", _ARCHIVE]):
        done = await sandbox.run(command, timeout_s=COPY_S)
        if done.exit_code != 0:
            raise SandboxError(f"{place}: {command[0]} ended with {done.exit_code}: {done.stderr[-300:]!r}")


def _pack(source: Path, archive: Path) -> None:
    with tarfile.open(archive, "w") as made:
        made.add(source, arcname=".")
