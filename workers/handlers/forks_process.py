"""The process behind `workers.handlers.forks`: one fork a request, gone when its standard input closes.

    PYTHONHASHSEED=0 python -m workers.handlers.forks_process LISTENING_DESCRIPTOR MODULE CPU_S WALL_S MEMORY_BYTES

It is single-threaded, so that forking is safe, and it never reads a request itself.
"""

import importlib
import os
import resource
import selectors
import signal
import socket
import sys
from collections.abc import Callable

MAX_LINE_BYTES = 1 << 24


def serve_one(
    connection: socket.socket, reply_to: Callable[[bytes], bytes], cpu_s: int, wall_s: int, memory_bytes: int
) -> None:
    """In the fork: limits, then one request."""
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    signal.alarm(wall_s)
    with connection, connection.makefile("rb") as lines:
        connection.sendall(b"ready\n")
        connection.sendall(reply_to(lines.readline(MAX_LINE_BYTES)) + b"\n")


def main() -> None:
    """Accepts until standard input closes."""
    module = importlib.import_module(sys.argv[2])
    cpu_s, wall_s, memory_bytes = map(int, sys.argv[3:6])
    module.load()  # before any fork
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forks are reaped by the system
    listener = socket.socket(fileno=int(sys.argv[1]))
    with selectors.DefaultSelector() as ready:
        ready.register(listener, selectors.EVENT_READ)
        ready.register(sys.stdin, selectors.EVENT_READ)
        while all(key.fileobj is listener for key, _ in ready.select()):
            connection, _ = listener.accept()
            if os.fork() == 0:
                try:
                    serve_one(connection, module.reply_to, cpu_s, wall_s, memory_bytes)
                finally:
                    os._exit(0)
            connection.close()


if __name__ == "__main__":
    main()
