"""A harness that takes no for an answer to nothing: it asks again whatever it is told, and leaves a process behind."""

import os
import time
from pathlib import Path

PROGRAM = """
import json, os, sys, time, urllib.request
if os.fork() == 0:
    os.setsid()  # out of the reach of what ends a group of processes
headers = {"Authorization": "Bearer " + os.environ["KEY"], "Content-Type": "application/json"}
body = json.dumps({"messages": [{"role": "user", "content": "Hello"}]}).encode()
while True:
    try:
        urllib.request.urlopen(urllib.request.Request(sys.argv[2] + "/v1/chat/completions", body, headers)).read()
    except OSError:
        time.sleep(0.1)
"""


def description(mark: str) -> dict[str, object]:
    """As a `harness.json` has it. `mark` stands in the command line of each of its processes."""
    return {"argv": ["python3", "-I", "-c", PROGRAM, mark, "{address}"], "environment": {"KEY": "{key}"}}


def left(mark: str, within_s: float = 30.0) -> list[int]:
    """Its processes that have not ended by then, seen from the host."""
    deadline = time.monotonic() + within_s
    while (found := alive(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)  # a process that ends in another namespace tells nobody here
    return found


def alive(mark: str) -> list[int]:
    found = []
    for process in Path("/proc").iterdir():
        try:
            words = (process / "cmdline").read_bytes().split(b"\0") if process.name.isdecimal() else []
        except OSError:
            continue
        if mark.encode() in words and int(process.name) != os.getpid():
            found.append(int(process.name))
    return found
