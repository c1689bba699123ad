"""Large files carried in and out of a sandbox, a piece at a time.

The pieces are read and written right in the event loop: a quarter of a megabyte goes to or comes from the page cache
in a tenth of a millisecond, and a thread that writes could not be cancelled.
"""

import asyncio
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from sandbox.host import process
from sandbox.lifetime import wire
from sandbox.protocol import SandboxHandle
from sandbox.server.files import CHUNK_BYTES, write_sparse

STALLED_S = 60.0  # without a byte going either way
SAFE_MODE = 0o755  # what came from a sandbox is nobody else's to write, and never set-user-id


async def upload(
    handle: SandboxHandle,
    source: Path,
    path: str,
    *,
    mode: int | None,
    marks: Mapping[str, str],
    dial: wire.Dial,
) -> None:
    """Raises the `OSError` of either side; a file inside is replaced by a whole one or not at all."""
    with source.open("rb", buffering=0) as stream:
        found = os.fstat(stream.fileno())
        size, mode = found.st_size, (found.st_mode if mode is None else mode) & 0o777
        try:
            async with asyncio.timeout(STALLED_S) as limit, wire.WireConnection(handle, dial) as connection:
                await connection.request({"op": "upload", "path": path, "mode": mode, "size": size, **marks})
                left = size
                while left:
                    piece = stream.read(min(left, CHUNK_BYTES))
                    if not piece:
                        raise OSError(5, "the file became shorter while it was read", str(source))
                    if not await connection.send(piece):
                        break
                    left -= len(piece)
                    limit.reschedule(asyncio.get_running_loop().time() + STALLED_S)
                answer = await connection.answer()
        except TimeoutError:
            raise wire.unanswered(handle, "upload", STALLED_S) from None
    wire.checked(handle, answer)


async def download(
    handle: SandboxHandle, path: str, target: Path, *, marks: Mapping[str, str], dial: wire.Dial
) -> None:
    """Raises the `OSError` of either side; the target is replaced by a whole file or not touched."""
    fresh = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            async with asyncio.timeout(STALLED_S) as limit, wire.WireConnection(handle, dial) as connection:
                await connection.request({"op": "download", "path": path, **marks})
                answer = await connection.answer()
                await _receive(handle, path, connection, descriptor, answer.header.get("size", 0), limit)
            os.fchmod(descriptor, wire.checked(handle, answer).header["mode"] & SAFE_MODE)
        except TimeoutError:
            raise wire.unanswered(handle, "download", STALLED_S) from None
        finally:
            os.close(descriptor)
        fresh.replace(target)
    finally:
        fresh.unlink(missing_ok=True)


async def _receive(
    handle: SandboxHandle,
    path: str,
    connection: wire.WireConnection,
    descriptor: int,
    size: int,
    limit: asyncio.Timeout,
) -> None:
    buffer = bytearray(CHUNK_BYTES)
    view = memoryview(buffer)
    left = size
    while left:
        try:
            count = await connection.receive_into(view[: min(left, CHUNK_BYTES)])
        except EOFError:
            if process.is_alive(handle.pid, handle.pid_started):
                raise OSError(5, "the file changed while it was read", path) from None
            raise  # for the way to say what has ended: a sandbox elsewhere has no process here
        write_sparse(descriptor, buffer, count)
        left -= count
        limit.reschedule(asyncio.get_running_loop().time() + STALLED_S)
    os.ftruncate(descriptor, size)
