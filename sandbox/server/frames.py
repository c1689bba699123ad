"""Frames of the sandbox socket: a JSON header with a binary payload, both length-prefixed.

One connection carries requests and their answers in turn; the client closing its end early means "stop it", unless
the request has a name (`sandbox.server.acts`).
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

LENGTHS = struct.Struct("!II")
HEADER_LIMIT = 64 << 20
PAYLOAD_LIMIT = 1 << 30
ENCODE = json.JSONEncoder(ensure_ascii=False).encode


def accepted(listener: socket.socket) -> socket.socket:
    """As its `accept`, which sockets without Python around them have not (`sandbox.isolators.payload`)."""
    descriptor, _ = listener._accept()  # type: ignore[attr-defined] # noqa: SLF001
    return socket.socket(fileno=descriptor)


def receive_exactly(connection: socket.socket, size: int) -> bytes:
    """Raises `EOFError` when the other side closes first."""
    data = connection.recv(size, socket.MSG_WAITALL)  # all of it, unless the process was stopped meanwhile
    while len(data) < size:
        more = connection.recv(size - len(data), socket.MSG_WAITALL)
        if not more:
            raise EOFError("the other side closed the connection")
        data += more
    return data


def receive(connection: socket.socket) -> tuple[dict[str, Any], bytes]:
    """One header with its payload."""
    header_size, payload_size = LENGTHS.unpack(receive_exactly(connection, LENGTHS.size))
    if header_size > HEADER_LIMIT or payload_size > PAYLOAD_LIMIT:
        raise ValueError(f"a frame of {header_size} + {payload_size} bytes is over the limit")
    body = receive_exactly(connection, header_size + payload_size)
    return json.loads(body[:header_size]), body[header_size:]


def send(connection: socket.socket, header: dict[str, Any], payload: bytes = b"") -> None:
    """One header with its payload. Half a character, as names of files may have, is replaced: UTF-8 has none."""
    head = ENCODE(header).encode("utf-8", "replace")
    connection.sendall(LENGTHS.pack(len(head), len(payload)) + head + payload)
