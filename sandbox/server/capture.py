"""A bounded record of a command's output: its head, its tail, the count of what lay between."""

from __future__ import annotations


class Capture:
    """Keeps the first and the last half of `limit` bytes; memory stays bounded whatever arrives."""

    def __init__(self, limit: int) -> None:
        self._head_limit = limit // 2
        self._tail_limit = limit - limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    def add(self, data: bytes) -> None:
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 4 * self._tail_limit + 65536:
            self._trim()

    def _trim(self) -> None:
        excess = len(self._tail) - self._tail_limit
        if excess > 0:
            self._dropped += excess
            del self._tail[:excess]

    def result(self) -> tuple[bytes, int]:
        """The kept output, with a line that says what was dropped, and the number of bytes dropped."""
        self._trim()
        if not self._dropped:
            return bytes(self._head + self._tail), 0
        head, tail = whole_characters(bytes(self._head), bytes(self._tail))
        dropped = self._dropped + len(self._head) - len(head) + len(self._tail) - len(tail)
        return head + b"\n[... %d bytes dropped ...]\n" % dropped + tail, dropped


def whole_characters(head: bytes, tail: bytes) -> tuple[bytes, bytes]:
    """Takes off what the cut left of a UTF-8 character at the end of the head or the start of the tail."""
    for back in range(1, min(4, len(head)) + 1):
        byte = head[-back]
        if byte >= 0xC0:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            head = head[:-back] if needed > back else head
            break
        if byte < 0x80:
            break
    start = 0
    while start < min(3, len(tail)) and 0x80 <= tail[start] < 0xC0:
        start += 1
    return head, tail[start:]
