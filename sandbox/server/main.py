"""The execution server: takes requests from the sandbox's socket, one connection each.

main.py DESCRIPTOR      serve on the listening socket inherited under that number
main.py PATH            serve on a Unix socket made there
main.py --front ...     the same below a first process of its own
main.py --kernel ...    run cells (started by the server itself)
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    Reply = tuple[dict[str, Any], bytes]

from sandbox.server.cells import run_kernel
from sandbox.server.children import limit
from sandbox.server.editor import Editor
from sandbox.server.files import read_file, write_file
from sandbox.server.frames import receive, send
from sandbox.server.front import run_front
from sandbox.server.kernel import Kernel
from sandbox.server.programs import Programs
from sandbox.server.shell import Shell

UNCONFIGURED_S = 30.0  # a server that nobody greets ends itself: its maker died
SPARE_PROCESSES = 16  # so that the server can act when the agent has used up its processes
INTERPRETER = "/usr/bin/python3"


class Server:
    """The tools of one sandbox, and which request goes to which."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._configured = threading.Event()
        self._acceptors = threading.Semaphore(0)
        self._settings: dict[str, Any] = {}

    def serve(self) -> None:
        threading.Thread(target=self._accept, daemon=True).start()
        if not self._configured.wait(UNCONFIGURED_S):
            return
        threading.Event().wait()

    def _accept(self) -> None:
        """One of several threads; each that takes a connection first sees to it that another one waits."""
        while True:
            connection, _ = self._listener.accept()
            another = self._acceptors.acquire(blocking=False) or self._start_acceptor()
            with connection:
                self._answer(connection)
            if another:
                self._acceptors.release()

    def _start_acceptor(self) -> bool:
        """False when what runs inside has used up all processes: the next connection then waits for this one."""
        try:
            threading.Thread(target=self._accept, daemon=True).start()
        except RuntimeError:
            return False
        return True

    def _answer(self, connection: socket.socket) -> None:
        try:
            request, payload = receive(connection)
        except (EOFError, OSError, ValueError):
            return
        try:
            header, body = self._handle(request, payload, connection.fileno())
        except OSError as error:
            name = os.fsdecode(error.filename) if error.filename is not None else None
            header, body = {"errno": error.errno or 5, "message": error.strerror or str(error), "path": name}, b""
        except Exception as error:
            header, body = {"fault": f"{type(error).__name__}: {error}"}, b""
        with contextlib.suppress(OSError):
            send(connection, header, body)

    def _handle(self, request: dict[str, Any], payload: bytes, hangup: int) -> Reply:
        operation = request["op"]
        if operation == "configure":
            self._configure(request)
            return {}, b""
        if operation == "ping":
            return {"configured": self._configured.is_set()}, b""
        self._configured.wait(UNCONFIGURED_S)
        tools: dict[str, Callable[[], Reply]] = {
            "bash": lambda: self._interact(request, payload.decode(), hangup),
            "ipython": lambda: self._interact(request, payload.decode(), hangup),
            "run": lambda: self._programs.run(request, payload, hangup),
            "edit": lambda: self._editor.run(request),
            "write_file": lambda: write_file(request, payload, self._settings["cwd"]),
            "read_file": lambda: read_file(request, self._settings["cwd"]),
            "interrupt": self._interrupt,
        }
        if operation not in tools:
            raise ValueError(f"unknown operation {operation!r}")
        return tools[operation]()

    def _interrupt(self) -> Reply:
        for tool in (self._shell, self._kernel, self._programs):
            tool.interrupt()
        return {}, b""

    def _interact(self, request: dict[str, Any], text: str, hangup: int) -> Reply:
        """That a shell or kernel cannot start is the doing of what runs inside, which has used up its limits."""
        timeout_s = request["timeout_s"]
        try:
            if request["op"] == "ipython":
                return self._kernel.run(text, timeout_s=timeout_s, hangup=hangup)
            return self._shell.run(text, timeout_s=timeout_s, is_input=request["is_input"], hangup=hangup)
        except OSError as error:
            message = "[{} cannot be started: {}]".format(error.filename or request["op"], error.strerror)
            return {"exit_code": 126, "ok": False}, message.encode()

    def _configure(self, settings: dict[str, Any]) -> None:
        if self._configured.is_set():
            raise ValueError("configured already")
        self._settings = settings
        limits = settings["limits"]
        own = dict(limits, cpu_s=None, open_files=max(512, limits.get("open_files") or 0))
        if limits.get("processes") is not None:
            own["processes"] = limits["processes"] + SPARE_PROCESSES
        limit(own)
        interpreter = settings.get("interpreter") or INTERPRETER
        self._shell = Shell(settings)
        self._kernel = Kernel(settings, [interpreter, os.path.abspath(sys.argv[0]), "--kernel"])
        self._programs = Programs(settings)
        self._editor = Editor()
        with contextlib.suppress(OSError):
            self._shell.start()
        self._configured.set()


def _keep_descriptors() -> None:
    """Nothing that this process was given goes on to what the agent runs."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own
            os.set_inheritable(int(name), False)


def serve(arguments: list[str]) -> None:
    """Serves until it is killed, told to end, or never configured."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as stream:
        stream.write("500")
    where = arguments[0]
    if where.isdigit():
        listener = socket.socket(fileno=int(where))
        _keep_descriptors()
    else:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(where)
        listener.listen(64)
    listener.setblocking(True)
    silent = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(silent, fd)
    Server(listener).serve()


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[0] == "--kernel":
        run_kernel(arguments[1:])
    elif arguments[0] == "--front":
        run_front(serve, arguments[1:])
    else:
        serve(arguments)


if __name__ == "__main__":
    main()
