"""The process behind `workers.handlers.forks`: one fork a request, gone when its standard input closes.

    PYTHONHASHSEED=0 python -m workers.handlers.forks_process LISTENING_DESCRIPTOR MODULE CPU_S MEMORY_BYTES

It is single-threaded, so that forking is safe, and it never reads a request itself. A request is a line: the wall time
that it may take, and what is asked. Behind a fork that died of that time it says how long the fork waited for a CPU.
"""

import contextlib
import importlib
import os
import resource
import selectors
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

MAX_LINE_BYTES = 1 << 24
LATE = b"\0late "  # no answer begins so


def serve_one(connection: socket.socket, reply_to: Callable[[bytes], bytes], cpu_s: int, memory_bytes: int) -> None:
    """In the fork: limits, then one request."""
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    with connection, connection.makefile("rb") as lines:
        connection.sendall(b"ready\n")
        wall_s, _, asked = lines.readline(MAX_LINE_BYTES).partition(b" ")
        signal.alarm(int(wall_s))
        connection.sendall(reply_to(asked) + b"\n")


def bury(pid: int, connection: socket.socket) -> None:
    """Takes away a fork that has ended. The line about its end is read only where it gave no answer."""
    waited_s = 0.0
    with contextlib.suppress(OSError, ValueError, IndexError):
        waited_s = int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    _, status = os.waitpid(pid, 0)
    with connection, contextlib.suppress(OSError):
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM:
            connection.sendall(LATE + b"%.3f\n" % waited_s)


def serve(listener: socket.socket, serve_fork: Callable[[socket.socket], None]) -> None:
    """Accepts until standard input closes."""
    with selectors.DefaultSelector() as ready:
        ready.register(listener, selectors.EVENT_READ)
        ready.register(sys.stdin, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.fileobj is sys.stdin:
                    return
                if key.fileobj is listener:
                    _accept(ready, listener, serve_fork)
                else:
                    ready.unregister(key.fd)
                    os.close(key.fd)
                    bury(*key.data)


def _accept(
    ready: selectors.BaseSelector, listener: socket.socket, serve_fork: Callable[[socket.socket], None]
) -> None:
    connection, _ = listener.accept()
    pid = os.fork()
    if pid == 0:
        try:
            for key in ready.get_map().values():
                if key.data is not None:
                    key.data[1].close()  # what other forks answer on
            serve_fork(connection)
        finally:
            os._exit(0)
    ready.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, connection))


def main() -> None:
    """Loads the module, then serves."""
    module = importlib.import_module(sys.argv[2])
    cpu_s, memory_bytes = map(int, sys.argv[3:5])
    module.load()  # before any fork
    listener = socket.socket(fileno=int(sys.argv[1]))
    serve(listener, lambda connection: serve_one(connection, module.reply_to, cpu_s, memory_bytes))


if __name__ == "__main__":
    main()
