"""Notices for the next answer of a tool: which limit was broken, and what was done about it."""

from __future__ import annotations

import threading

MOST = 20


class Notices:
    """Lines that wait for a tool's answer to go out with."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._lock = threading.Lock()

    def post(self, line: str) -> None:
        with self._lock:
            self._lines.append(line)
            del self._lines[:-MOST]

    def take(self) -> bytes:
        """The lines, each in brackets, for the end of an output."""
        if not self._lines:
            return b""
        with self._lock:
            lines, self._lines = self._lines, []
        return "".join(f"\n[{line}]\n" for line in lines).encode()
