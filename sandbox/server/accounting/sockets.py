"""The buffers of sockets, as the kernel's `sock_diag` lists them: also of sockets on their way between processes."""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import TYPE_CHECKING

from sandbox.server.accounting.looking import KeptFile

if TYPE_CHECKING:
    from sandbox.server.processes import Proc

SOCK_DIAG = 4
BY_FAMILY, DUMP, DONE, ERROR = 20, 0x301, 3, 2
HEADER = struct.Struct("=IHHII")  # struct nlmsghdr
UNIX, INET, INET6, TCP, UDP = 1, 2, 10, 6, 17
ALL_STATES = 0xFFFFFFFF
UNIX_SIZE, INET_SIZE = 16, 72  # of an answer, before its attributes
UNIX_MEMORY, INET_MEMORY = 5, 7  # the attribute that both are asked for
RECEIVED, SENT, QUEUED, BACKLOG = 0, 2, 5, 7  # in it, of 4 bytes each
DUMP_BYTES = 1 << 18
ANSWER_S = 1.0
UNCOUNTED = 1 << 20  # sockets: as many as there may be


def _largest_buffer() -> int:
    """That a socket can be given here."""
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as one:
        sizes = []
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            one.setsockopt(socket.SOL_SOCKET, option, (1 << 30) - 1)
            sizes.append(one.getsockopt(socket.SOL_SOCKET, option))
        return max(sizes)


def _unix() -> bytes:
    return struct.pack("=BBHIIIII", UNIX, 0, 0, ALL_STATES, 0, 0x20, ALL_STATES, ALL_STATES)


def _inet(family: int, protocol: int) -> bytes:
    return struct.pack("=BBBBI48x", family, protocol, 1 << (INET_MEMORY - 1), 0, ALL_STATES)


UNIX_SOCKETS = (_unix(), UNIX_SIZE, UNIX_MEMORY)
UDP_SOCKETS, TCP_SOCKETS = (
    [(_inet(family, protocol), INET_SIZE, INET_MEMORY) for family in (INET, INET6)] for protocol in (UDP, TCP)
)


class SocketBuffers:
    """Those of this process's network. Make it before the filter of system calls, which refuses what it asks with."""

    def __init__(self, proc: Proc) -> None:
        self._directory = proc.directory_of_all()
        self._counts: list[KeptFile] | None = None
        self._asked = 0
        self._socket: socket.socket | None = None
        with contextlib.suppress(OSError):  # a kernel without it
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, SOCK_DIAG)
            self._socket.settimeout(ANSWER_S)
        self._buffer = bytearray(DUMP_BYTES)
        self._own = 0  # sockets that were there before anything else ran
        self._most_bytes = 2 * _largest_buffer()  # of one socket: a message may begin where it is almost full

    def begin(self) -> None:
        """Nothing but the server runs yet. Where the kernel does not tell how many sockets that has, all count."""
        own, _ = self._counted()
        self._own = 0 if own == UNCOUNTED else own

    def held_bytes(self, few_bytes: int = 0) -> int:
        """Bytes in all of them. What the kernel does not tell counts as none, and so do sockets that are so few that
        they cannot hold more than `few_bytes`.
        """
        sockets, tcp = self._counted()
        if not tcp and (sockets - self._own) * self._most_bytes <= few_bytes:
            return 0
        questions = [UNIX_SOCKETS, *UDP_SOCKETS]
        if tcp:  # it takes the kernel milliseconds to find that there is none
            questions += TCP_SOCKETS
        return sum(self._held(*question) for question in questions)

    def _counted(self) -> tuple[int, bool]:
        """Counts sockets of any kind, and tells whether some are of TCP: many and yes, where nothing says so."""
        try:
            if self._counts is None:
                self._counts = [KeptFile("self/net/sockstat", self._directory)]
                with contextlib.suppress(OSError):  # a kernel without IPv6
                    self._counts.append(KeptFile("self/net/sockstat6", self._directory))
            rows = [line.split() for counts in self._counts for line in counts.read().splitlines()]
            found = {row[0]: int(row[2]) for row in rows}
            return found["sockets:"], bool(found["TCP:"] or found.get("TCP6:"))
        except (OSError, LookupError, ValueError):
            return UNCOUNTED, True

    def _held(self, question: bytes, size: int, memory_attribute: int) -> int:
        if self._socket is None:
            return 0
        self._asked += 1
        held = 0
        with contextlib.suppress(OSError):  # a family that is not there, or too little memory for the answer
            self._socket.send(HEADER.pack(HEADER.size + len(question), BY_FAMILY, DUMP, self._asked, 0) + question)
            going = True
            while going:
                count = self._socket.recv_into(self._buffer)
                found, going = _read(memoryview(self._buffer)[:count], self._asked, size, memory_attribute)
                held += found
        return held


def _read(answer: memoryview, asked: int, size: int, memory: int) -> tuple[int, bool]:
    """Bytes in the sockets that an answer lists; and whether there is more to come."""
    held, at = 0, 0
    while at + HEADER.size <= len(answer):
        length, kind, _, number, _ = HEADER.unpack_from(answer, at)
        if number == asked and kind in (DONE, ERROR):
            return held, False
        if number == asked and kind == BY_FAMILY:
            held += _of_socket(answer[at + HEADER.size + size : at + length], memory)
        at += (max(length, HEADER.size) + 3) & ~3
    return held, True


def _of_socket(attributes: memoryview, memory: int) -> int:
    at = 0
    while at + 4 <= len(attributes):
        length, kind = struct.unpack_from("=HH", attributes, at)
        if kind == memory and length >= 4 * (2 + BACKLOG):
            rows = struct.unpack_from(f"={(length - 4) // 4}I", attributes, at + 4)
            return int(rows[RECEIVED] + max(rows[SENT], rows[QUEUED]) + rows[BACKLOG])
        at += (max(length, 4) + 3) & ~3
    return 0
