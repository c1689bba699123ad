"""The pipe that bash reads its commands from."""

from __future__ import annotations

import fcntl
import os
import struct
import termios


class CommandPipe:
    """Its writing end, which does not block."""

    def __init__(self, writer: int) -> None:
        os.set_blocking(writer, False)
        self.fd = writer
        self._waiting = b""  # has no room in the pipe yet

    def add(self, line: bytes) -> None:
        self._waiting += line

    def offer(self) -> bool:
        """Writes what fits; whether that was all."""
        if self._waiting:
            self._waiting = offer(self.fd, self._waiting)
        return not self._waiting

    def unread_bytes(self) -> int:
        """Number of bytes that bash has not taken yet, which it does byte by byte."""
        in_pipe = struct.unpack("i", fcntl.ioctl(self.fd, termios.FIONREAD, bytes(4)))[0]
        return int(in_pipe) + len(self._waiting)

    def close(self) -> None:
        os.close(self.fd)


def offer(fd: int, data: bytes) -> bytes:
    """Writes what fits; the rest comes back."""
    try:
        return data[os.write(fd, data[:65536]) :]
    except BlockingIOError:
        return data
    except OSError:
        return b""
