"""The host's side of the sandbox socket: one connection for each request.

So nothing is held open between calls, any process of the node can call, and cancelling a call (which closes its
connection) stops what it started.
"""

import asyncio
import contextlib
import socket
import struct
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from sandbox import label, process
from sandbox.errors import SandboxError, SandboxGone
from sandbox.protocol import SandboxHandle

LENGTHS = struct.Struct("!II")
GRACE_S = 20.0  # beyond a command's own time: stopping it takes the server up to two seconds
CHUNK_BYTES = 256 << 10


class Answer(NamedTuple):
    """A header with a binary payload."""

    header: dict[str, Any]
    payload: bytes


async def call(handle: SandboxHandle, header: dict[str, Any], payload: bytes = b"", *, timeout_s: float) -> Answer:
    """Sends a request and waits for its answer.

    Raises `SandboxGone` when the sandbox is dead or dies meanwhile, `SandboxError` when it does not answer in
    `timeout_s` plus a grace, and the `OSError` that a file operation met inside.
    """
    try:
        async with asyncio.timeout(timeout_s + GRACE_S):
            answer = await _exchange(Path(handle.directory), header, payload)
    except TimeoutError:
        raise SandboxError(
            f"sandbox {handle.sandbox_id} on {handle.node} did not answer {header['op']!r} within "
            f"{timeout_s + GRACE_S:.0f} s; destroy it"
        ) from None
    except (EOFError, ConnectionError, FileNotFoundError) as error:
        raise SandboxGone(
            f"sandbox {handle.sandbox_id} on {handle.node} is gone: {_why(handle, error)}; make a new one"
        ) from error
    return _checked(handle, answer)


def _why(handle: SandboxHandle, error: Exception) -> str:
    if process.is_alive(handle.pid, handle.pid_started):
        return f"its server does not answer ({type(error).__name__}) though process {handle.pid} lives"
    return f"process {handle.pid} is dead"


def _checked(handle: SandboxHandle, answer: Answer) -> Answer:
    header = answer.header
    if "fault" in header:
        raise SandboxError(f"the server of sandbox {handle.sandbox_id} failed: {header['fault']}")
    if "errno" in header:
        raise OSError(header["errno"], header["message"], header["path"])
    return answer


async def _exchange(directory: Path, header: dict[str, Any], payload: bytes) -> Answer:
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.setblocking(False)
        with label.socket_address(directory) as address:
            await loop.sock_connect(connection, address)
        head = msgspec.json.encode(header)
        with contextlib.suppress(BrokenPipeError):  # what it answered before it closed is still to be read
            await loop.sock_sendall(connection, LENGTHS.pack(len(head), len(payload)) + head + payload)
        data = bytearray()
        while True:
            chunk = await loop.sock_recv(connection, CHUNK_BYTES)
            if not chunk:
                raise EOFError
            data += chunk
            if len(data) >= LENGTHS.size:
                head_size, payload_size = LENGTHS.unpack_from(data)
                if len(data) >= LENGTHS.size + head_size + payload_size:
                    body = LENGTHS.size + head_size
                    return Answer(msgspec.json.decode(data[LENGTHS.size : body]), bytes(data[body:]))
