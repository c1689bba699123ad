"""Files carried in and out of the sandbox.

Paths are the sandbox's own, relative ones below its working directory: links and `..` lead where they lead a program
inside. A file appears whole or not at all, except for `write_file`, which writes into what is there.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING, Any

from sandbox.server.acts import Acts
from sandbox.server.frames import send

if TYPE_CHECKING:
    import socket

CHUNK_BYTES = 256 << 10
HOLE = bytes(CHUNK_BYTES)


def write_file(request: dict[str, Any], data: bytes, cwd: str) -> tuple[dict[str, Any], bytes]:
    """Replaces or makes a file, and the directories above it."""
    path = os.path.join(cwd, request["path"])
    os.makedirs(os.path.dirname(path), exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK
    with os.fdopen(os.open(path, flags, 0o600), "wb") as stream:
        stream.write(data)
        os.fchmod(stream.fileno(), request["mode"])
    return {}, b""


def read_file(request: dict[str, Any], cwd: str) -> tuple[dict[str, Any], bytes]:
    """A regular file's content; a larger one than asked for is refused, for half a file is a wrong answer."""
    limit = request["limit_bytes"]
    descriptor, path = _open_regular(request, cwd)
    with os.fdopen(descriptor, "rb") as stream:
        data = stream.read(limit + 1)
    if len(data) > limit:
        raise OSError(27, f"the file is larger than {limit} bytes", path)
    return {}, data


def receive_file(
    request: dict[str, Any], connection: socket.socket, cwd: str, acts: Acts
) -> tuple[dict[str, Any], bytes]:
    """A file of `size` bytes that follow the request. A link at its place stays, and what it leads to is replaced."""
    if acts.landed(request):
        _drop(connection, request["size"])
        return {}, b""
    path = os.path.realpath(os.path.join(cwd, request["path"]))
    if os.path.isdir(path):
        raise OSError(21, os.strerror(21), path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    fresh = f"{path}.{os.urandom(8).hex()}.part"
    try:
        with open(fresh, "xb", buffering=0) as stream:
            _fill(stream.fileno(), connection, request["size"])
            os.fchmod(stream.fileno(), request["mode"])
        if not acts.land(request, lambda: os.rename(fresh, path)):
            os.unlink(fresh)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(fresh)
        if isinstance(error, OSError) and error.filename in (None, fresh):
            raise OSError(error.errno, error.strerror, path) from error
        raise
    return {}, b""


def _drop(connection: socket.socket, left: int) -> None:
    while left:
        count = len(connection.recv(min(left, CHUNK_BYTES)))
        if count == 0:
            raise EOFError("the other side closed the connection")
        left -= count


def _fill(descriptor: int, connection: socket.socket, size: int) -> None:
    buffer = bytearray(CHUNK_BYTES)
    view = memoryview(buffer)
    left = size
    while left:
        count = connection.recv_into(view[: min(left, CHUNK_BYTES)])
        if count == 0:
            raise EOFError("the other side closed the connection")
        write_sparse(descriptor, buffer, count)
        left -= count
    os.ftruncate(descriptor, size)


def write_sparse(descriptor: int, buffer: bytearray, count: int) -> None:
    """Appends the first `count` bytes, at most `CHUNK_BYTES`; zeros become a hole, which takes no space.

    A file that could end in a hole needs an `ftruncate` to its size at last.
    """
    if buffer.startswith(HOLE[:count]):
        os.lseek(descriptor, count, os.SEEK_CUR)
        return
    data = memoryview(buffer)[:count]
    while data:
        data = data[os.write(descriptor, data) :]


def send_file(request: dict[str, Any], connection: socket.socket, cwd: str) -> tuple[dict[str, Any], bytes]:
    """Answers with the size and the permissions of a regular file, and sends that many bytes.

    What goes wrong in between ends the connection: an answer would be taken for content.
    """
    descriptor, _ = _open_regular(request, cwd)
    with os.fdopen(descriptor, "rb") as stream:
        found = os.fstat(stream.fileno())
        send(connection, {"size": found.st_size, "mode": stat.S_IMODE(found.st_mode)})
        sent = 0
        while sent < found.st_size:
            try:
                count = os.sendfile(connection.fileno(), descriptor, sent, min(found.st_size - sent, CHUNK_BYTES))
            except OSError as error:
                raise EOFError(str(error)) from error
            if count == 0:
                raise EOFError("the file has shrunk meanwhile")
            sent += count
    return {}, b""


def _open_regular(request: dict[str, Any], cwd: str) -> tuple[int, str]:
    path = os.path.join(cwd, request["path"])
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(22, "not a regular file", path)
    return descriptor, path
