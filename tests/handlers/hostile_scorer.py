"""A scorer for the tests of forks that an answer has gained control of. `workers.handlers.forks` runs it."""

import json
import os
import socket
import time


def load() -> None:
    """Nothing to load."""


def reply_to(line: bytes) -> bytes:
    """`echo ...`, `die`, `sleep`, or `write TEXT` into every socket that it has."""
    line = json.loads(line)["line"].encode() if line.startswith(b"{") else line
    word, _, rest = line.strip().partition(b" ")
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
