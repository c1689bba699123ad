"""Attacks on limits: each takes more than it may have and keeps it for a moment.

What the sandbox kills for it prints nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any

from sandbox.attack.inside.tools import LIBC, Contained

KEPT_S = 1.0  # so long it must have what it has taken
PAGE, MIB = 4096, 1 << 20
PROT_READ, PRIVATE_ANONYMOUS_NORESERVE = 1, 0x4022
SPIN_S = 0.7
PLACES = ("/tmp", "/var/tmp", "/dev/shm", os.path.expanduser("~"), "/workspace")


def _kept(said: str) -> str:
    time.sleep(KEPT_S)
    return said


def _touch(size: int, flags: int) -> mmap.mmap:
    block = mmap.mmap(-1, size, flags | mmap.MAP_ANONYMOUS)
    for at in range(0, size, PAGE):
        block[at] = 1
    return block


def _taken(size: int, flags: int) -> mmap.mmap:
    try:
        return _touch(size, flags)
    except MemoryError as error:
        raise Contained("no such mapping is made") from error


def memory_of_one(facts: dict[str, Any]) -> str:
    block = _taken(facts["bytes"], mmap.MAP_PRIVATE)
    return _kept(f"one process keeps {len(block) // MIB} MiB")


def memory_of_many(facts: dict[str, Any]) -> str:
    """Each of them far below the limit."""
    size = facts["bytes"] // facts["count"]
    children = []
    for _ in range(facts["count"]):
        pid = os.fork()
        if pid == 0:
            _touch(size, mmap.MAP_PRIVATE)
            time.sleep(60)
            os._exit(0)
        children.append(pid)
    time.sleep(1.0 + KEPT_S)
    ended = [pid for pid in children if os.waitpid(pid, os.WNOHANG)[0]]
    for pid in set(children) - set(ended):
        os.kill(pid, signal.SIGKILL)
    if ended:
        raise Contained(f"{len(ended)} of {len(children)} processes were ended")
    return f"{len(children)} processes keep {facts['bytes'] // MIB} MiB"


def memory_shared(facts: dict[str, Any]) -> str:
    block = _taken(facts["bytes"], mmap.MAP_SHARED)
    return _kept(f"{len(block) // MIB} MiB of shared memory are kept")


def memory_let_go(facts: dict[str, Any]) -> str:
    """Its pages are the mapping's, and no process has them."""
    kept = []
    for _ in range(facts["count"]):
        size = facts["bytes"] // facts["count"] // PAGE * PAGE
        kept.append(_taken(size, mmap.MAP_SHARED))
        LIBC.madvise(ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(kept[-1]))), ctypes.c_size_t(size), 4)
    return _kept(f"{facts['bytes'] // MIB} MiB of shared memory that no process has in its account are kept")


def memory_in_sockets(facts: dict[str, Any]) -> str:
    """Of pairs that nobody reads. What closed senders have sent is on no list of sockets."""
    kept, size = [], 0
    while size < facts["bytes"]:
        pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM if facts["closed"] else socket.SOCK_STREAM)
        for one in pair[: 1 if facts["closed"] else 2]:
            size += _stuffed(one)
        if facts["closed"]:
            pair[0].close()
        kept.append(pair)
    return _kept(f"{size // MIB} MiB lie in {len(kept)} pairs of sockets")


def _stuffed(one: socket.socket) -> int:
    """Bytes that were sent; raises `Contained` where there is room for none."""
    one.setblocking(False)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MIB)
    size = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            size += one.send(bytes(60_000))
    if not size:
        raise Contained("a new socket takes nothing")
    return size


def memory_in_page_tables(facts: dict[str, Any]) -> str:
    """One page of zeros, which costs nothing, at so many addresses that their tables take what is wanted."""
    size = facts["bytes"] // PAGE * (2 * MIB)
    LIBC.mmap.restype = ctypes.c_void_p
    LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    start = LIBC.mmap(None, size, PROT_READ, PRIVATE_ANONYMOUS_NORESERVE, -1, 0)
    if start in (None, ctypes.c_void_p(-1).value):
        raise Contained("no such mapping is made")
    for at in range(start, start + size, 2 * MIB):
        ctypes.string_at(at, 1)
    return _kept(f"{facts['bytes'] // MIB} MiB of page tables are kept")


def many_processes(facts: dict[str, Any]) -> str:
    children: list[int] = []
    try:
        while len(children) < facts["count"]:
            pid = os.fork()
            if pid == 0:
                time.sleep(60)
                os._exit(0)
            children.append(pid)
        return _kept(f"{len(children)} processes run")
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)


def many_threads(facts: dict[str, Any]) -> str:
    end = threading.Event()
    threading.stack_size(256 << 10)
    threads = [threading.Thread(target=end.wait, daemon=True) for _ in range(facts["count"])]
    try:
        for each in threads:
            each.start()
        return _kept(f"{len(threads)} threads run")
    except RuntimeError as error:
        raise Contained(str(error)) from error
    finally:
        end.set()


def many_open_files(facts: dict[str, Any]) -> str:
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(facts["count"])]
    return _kept(f"{len(opened)} files are open")


def large_file(facts: dict[str, Any]) -> str:
    """The signal of the limit is ignored: the call fails then."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    size = _filled("/tmp/large", facts["bytes"])
    return f"a file has {size // MIB} MiB"


def many_files(facts: dict[str, Any]) -> str:
    """A mebibyte each, in all places in turn."""
    size, places = 0, [each for each in PLACES if os.access(each, os.W_OK)]
    for number in range(facts["bytes"] // MIB):
        size += _filled(f"{places[number % len(places)]}/{number}", MIB)
    return _kept(f"files take {size // MIB} MiB")


def _filled(path: str, size: int) -> int:
    with open(path, "wb", buffering=0) as stream:
        while size > 0:
            size -= stream.write(bytes(min(size, MIB)))
    return os.stat(path).st_size


def many_empty_files(facts: dict[str, Any]) -> str:
    for number in range(facts["count"]):
        os.close(os.open(f"/tmp/empty-{number}", os.O_CREAT | os.O_WRONLY))
    return _kept(f"{facts['count']} empty files are there")


def spin(facts: dict[str, Any]) -> str:
    """Says what part of a CPU it had."""
    del facts
    began, used = time.monotonic(), time.process_time()
    while time.monotonic() < began + SPIN_S:
        pass
    return str((time.process_time() - used) / (time.monotonic() - began))


def spinners(facts: dict[str, Any]) -> str:
    """Leaves so many behind, each in a session of its own, to which the kernel gives a share of its own."""
    for _ in range(facts["count"]):
        subprocess.Popen(
            [sys.executable, "-S", "-c", "while True: pass"], start_new_session=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    return "left behind"


def starve(facts: dict[str, Any]) -> str:
    """Both at once: what a program has of a CPU beside them. They end with it."""
    alone = float(spin(facts))
    children = [
        subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"], start_new_session=True)
        for _ in range(facts["count"])
    ]
    try:
        time.sleep(0.2)
        left = float(spin(facts))
    finally:
        for each in children:
            each.kill()
            each.wait()
    if left > alone / 2:
        raise Contained(f"a neighbour keeps {left:.2f} of a CPU, of {alone:.2f}")
    return f"a neighbour has {left:.2f} of a CPU, of {alone:.2f}"
