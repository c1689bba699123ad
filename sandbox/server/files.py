"""Files carried in and out of the sandbox."""

from __future__ import annotations

import os
import stat
from typing import Any


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
    path = os.path.join(cwd, request["path"])
    limit = request["limit_bytes"]
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise OSError(22, "not a regular file", path)
        data = stream.read(limit + 1)
    if len(data) > limit:
        raise OSError(27, f"the file is larger than {limit} bytes", path)
    return {}, data
