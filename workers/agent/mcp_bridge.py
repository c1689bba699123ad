"""Keeps a stdio MCP server alive in a sandbox. The text of this file is what runs there: standard library only.

    python3 -I -c TEXT start SOCKET COMMAND...    starts the server behind a socket, and returns
    python3 -I -c TEXT call SOCKET                hands the line on standard input over, and writes what is answered

One message a call: a line of JSON. A call with an id waits for the answer with that id.
"""

from __future__ import annotations  # Python 3.8 may run this

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from typing import Any


class Bridge:
    """The server, and the answers that somebody waits for."""

    def __init__(self, command: list[str]) -> None:
        self.server: Any = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.changed = threading.Condition()
        self.answers: dict[str, bytes] = {}
        self.ended = False
        threading.Thread(target=self.read, daemon=True).start()

    def read(self) -> None:
        for line in self.server.stdout:
            try:
                message = json.loads(line)
            except ValueError:
                continue
            with self.changed:
                if "id" in message and "method" not in message:  # what a server asks or notes is not passed on
                    self.answers[json.dumps(message["id"])] = line
                self.changed.notify_all()
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def exchange(self, line: bytes) -> bytes:
        message = json.loads(line)
        with self.changed:
            if self.ended:
                return b""
            self.server.stdin.write(line.rstrip(b"\n") + b"\n")
            self.server.stdin.flush()
            if "id" not in message:
                return b""
            key = json.dumps(message["id"])
            self.changed.wait_for(lambda: key in self.answers or self.ended)
            return self.answers.pop(key, b"")

    def serve(self, listener: socket.socket) -> None:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=self.one, args=(connection,), daemon=True).start()

    def one(self, connection: socket.socket) -> None:
        gone = contextlib.suppress(OSError, ValueError)  # the caller, or the server
        with gone, connection, connection.makefile("rb") as lines:
            connection.sendall(self.exchange(lines.readline()))


def start(path: str, command: list[str]) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(16)
    if os.fork():
        return
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    Bridge(command).serve(listener)


def call(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.sendall(sys.stdin.buffer.readline())
        with connection.makefile("rb") as lines:
            sys.stdout.buffer.write(lines.read())


if __name__ == "__main__":
    if sys.argv[1] == "start":
        start(sys.argv[2], sys.argv[3:])
    else:
        call(sys.argv[2])
