"""A scorer for the tests of forks that an answer has gained control of. `workers.handlers.forks` runs it."""

import errno
import json
import os
import signal
import socket
import time
from collections.abc import Callable
from functools import partial


def _stay(how: bytes) -> None:
    """As an answer that wants no end: without an alarm, in a session of its own, by a grandchild, or alone."""
    signal.alarm(0)
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    if how == b"parent":
        for kill in (signal.SIGSTOP, signal.SIGKILL):
            os.kill(os.getppid(), kill)
    if how in {b"orphan", b"answer"} and os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        time.sleep(999)
    if how != b"answer":
        time.sleep(999)


def _listens(number: int) -> bool:
    try:
        return bool(socket.socket(fileno=os.dup(number)).getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    except OSError:
        return False


def _reach(path: str) -> bytes:
    """By a socket of its own, and by an end of a pair."""
    stream = partial(socket.socket, socket.AF_UNIX, socket.SOCK_STREAM)
    datagram = partial(socket.socket, socket.AF_UNIX, socket.SOCK_DGRAM)
    ways = (
        lambda: stream().connect(f"{path}.stream"),
        lambda: datagram().connect(f"{path}.datagram"),
        lambda: socket.socketpair(type=socket.SOCK_DGRAM)[0].connect(f"{path}.datagram"),
    )
    return b" ".join(map(_told, ways))


def _told(attempt: Callable[[], object]) -> bytes:
    try:
        attempt()
    except OSError as error:
        return errno.errorcode[error.errno or 0].encode()
    return b"done"


def load() -> None:
    """Nothing to load."""


def reply_to(line: bytes) -> bytes:
    """`echo ...`, `die`, `listeners`, `sleep`, `stay HOW`, or `write TEXT` into every socket that it has.

    `see PATH` and `reach PATH` say what became of the attempt.
    """
    line = json.loads(line)["line"].encode() if line.startswith(b"{") else line
    word, _, rest = line.strip().partition(b" ")
    if word == b"listeners":
        return b"%d" % sum(map(_listens, range(3, 64)))
    if word == b"stay":
        _stay(rest)
    if word == b"see":
        return b"%d" % os.path.lexists(rest)
    if word == b"reach":
        return _reach(rest.decode())
    if word == b"sleep":
        time.sleep(99)
    if word == b"write":
        for number in range(3, 64):
            try:
                socket.socket(fileno=os.dup(number)).send(rest.decode("unicode-escape").encode("latin-1"))
            except OSError:
                continue
    if word in {b"write", b"die"}:
        os._exit(1)
    return rest
