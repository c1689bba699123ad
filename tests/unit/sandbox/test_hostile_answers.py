"""Whatever bytes come out of a sandbox: a result, or one kind of error that its caller expects."""

import random
import socket
from typing import Any

import msgspec
import pytest

from sandbox.errors import SandboxError
from sandbox.lifetime.client import SocketSandbox
from sandbox.lifetime.link import Link
from sandbox.lifetime.wire import HEADER_LIMIT, LENGTHS, WireConnection, checked
from sandbox.protocol import CellResult, ProcessResult, SandboxHandle, ShellResult

pytestmark = pytest.mark.anyio
HANDLE = SandboxHandle(kind="local", node="n", sandbox_id="s", directory="/nowhere", pid=1, pid_started="1")
HEADERS: list[Any] = [
    {"exit_code": 0, "timed_out": False, "dropped_bytes": 0, "seconds": 0.1, "stdout_bytes": 3},
    {"ok": True, "images": [{"path": "/a", "mime": "image/png", "size_bytes": 1}]},
    {"fault": "ValueError"},
    {"errno": 2, "message": "no such file", "path": "/a"},
]
VALUES: list[Any] = [None, "x", -1, 1 << 70, 1e308, [], {}, [[]], {"path": []}, "\x00", True]


def answers(seed: int) -> bytes:
    """A frame as our server writes it, with something wrong."""
    chance = random.Random(seed)
    header = dict(chance.choice(HEADERS))
    for _ in range(chance.randint(0, 2)):
        header[chance.choice([*header, "last", "cpu_seconds"])] = chance.choice(VALUES)
    head = bytearray(msgspec.json.encode(header if chance.random() < 0.9 else chance.choice(VALUES)))
    if chance.random() < 0.3 and head:
        head[chance.randrange(len(head))] = chance.randrange(256)
    return LENGTHS.pack(len(head), 3) + bytes(head) + b"abc"


async def received(data: bytes) -> None:
    """As a call reads it: an answer, then a result of it."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    connection = WireConnection(HANDLE)
    connection._link = Link(ours)
    try:
        theirs.sendall(data)
        theirs.close()
        answer = checked(HANDLE, await connection.answer())
        box = SocketSandbox(HANDLE)
        for kind in (ShellResult, CellResult):
            box._read(kind, answer.header, output="")
        box._read(ProcessResult, answer.header, stdout=b"", stderr=b"")
    finally:
        connection.close()
        theirs.close()


async def test_no_bytes_make_another_error() -> None:
    """Anything else would be retried as our own failure, and end without a reward."""
    ends = set[str]()
    for seed in range(2_000):
        try:
            await received(answers(seed))
            ends.add("result")
        except (SandboxError, OSError, EOFError) as error:
            ends.add(type(error).__name__)
    assert {"SandboxError", "FileNotFoundError"} <= ends


async def test_an_answer_of_gigabytes_is_not_waited_for() -> None:
    with pytest.raises(SandboxError, match="an answer that is none"):
        await received(LENGTHS.pack(HEADER_LIMIT + 1, 0))
