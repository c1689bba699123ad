"""The execution server: takes requests from the sandbox's socket.

main.py DESCRIPTOR           serve on the listening socket inherited under that number, in a PID namespace
main.py --front DESCRIPTOR   the same below a first process, where there is no PID namespace
main.py --enter ...          the same from outside, where the image has no Python (see `sandbox.isolators.outside`)
main.py --bare ...           any of these without hiding and sealing itself: a control for attacks
main.py --kernel ...         run cells (started by the server itself)
main.py --login ...          a person's shell, beside the server (see `sandbox.login`)
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandbox.server.checkpoint.checkpoints import Checkpoints

    Reply = tuple[dict[str, Any], bytes]

from sandbox.server.accounting.sockets import SocketBuffers
from sandbox.server.acts import ActCancelled, Acts, Asker, NotQuiet, Taken
from sandbox.server.cells import compiled, run_kernel
from sandbox.server.children import Children, Sacrifice, limit
from sandbox.server.daemon import Outside, enter, run_front
from sandbox.server.editor import Editor
from sandbox.server.files import read_file, receive_file, send_file, write_file
from sandbox.server.frames import accepted, receive, send
from sandbox.server.kernel import Kernel
from sandbox.server.libc import hide_from_tracers
from sandbox.server.login import login
from sandbox.server.processes import Proc
from sandbox.server.programs import Programs
from sandbox.server.sealing.seal import hide_and_seal
from sandbox.server.shell import Shell
from sandbox.server.watchdog import Notices, Watchdog

LEND_S = 20.0  # for the sealing of files, during which no act begins
UNCONFIGURED_S = 30.0  # a server that nobody greets ends itself: its maker died
SPARE_PROCESSES = 16  # so that the server can act when the agent has used up its processes
SPARE_BYTES = 256 << 20  # and work where the agent has very little memory
STACK_BYTES = 1 << 20  # of a thread: the usual eight would count
INTERPRETER = "/usr/bin/python3"
NO_PYTHON = "[this image has no Python, so there are no cells here: use bash]"


class ExecutionServer:
    """The tools of one sandbox, and which request goes to which."""

    def __init__(
        self,
        listener: socket.socket,
        proc: Proc,
        children: Children,
        roots: tuple[int, ...],
        outside: Outside | None,
        sockets: SocketBuffers,
    ) -> None:
        self._listener = listener
        self._proc, self._children = proc, children
        self._roots, self._sockets, self._outside = roots, sockets, outside
        self._acts = Acts()
        self._making = threading.Lock()
        self._checkpoints: Checkpoints | None = None  # from the first request on
        self._spoilt = ""  # why what was to be restored here was not
        self._places: tuple[str, ...] = ()
        self._notices = Notices()
        self._configured = threading.Event()
        self._acceptors = threading.Semaphore(0)
        self._watched: dict[str, Callable[..., Reply]] = {}  # operations whose work the watchdog looks at
        self._others: dict[str, Callable[[dict[str, Any], bytes, socket.socket], Reply]] = {}

    def serve(self) -> None:
        """Returns when the sandbox is to end."""
        threading.Thread(target=self._accept, daemon=True).start()
        if self._outside is not None:
            threading.Thread(target=self._outside.end_with_it, daemon=True).start()
        if not self._configured.wait(UNCONFIGURED_S):
            return
        if self._outside is not None or os.getpid() == 1:
            self._children.reap()
        else:
            threading.Event().wait()

    def _accept(self) -> None:
        """One of several threads; each that takes a connection first sees to it that another one waits."""
        while True:
            connection = accepted(self._listener)
            another = self._acceptors.acquire(blocking=False) or self._start_acceptor()
            with contextlib.closing(connection):
                while self._answer(connection, last=not another) and another:
                    pass
            if another:
                self._acceptors.release()

    def _start_acceptor(self) -> bool:
        """False when what runs inside has used up all processes: the next connection then waits for this one."""
        try:
            threading.Thread(target=self._accept, daemon=True).start()
        except RuntimeError:
            return False
        return True

    def _answer(self, connection: socket.socket, *, last: bool) -> bool:
        """One request. False when the client has gone, or must be left."""
        try:
            request, payload = receive(connection)
        except (EOFError, OSError, ValueError):
            return False
        try:
            header, body = self._replied(lambda: self._handle(request, payload, connection))
        except EOFError:
            return False
        try:
            send(connection, dict(header, last=True) if last else header, body)
        except OSError:
            return False
        return True

    def _replied(self, handle: Callable[[], Reply]) -> Reply:
        """Failures are replies, too. Raises `EOFError` alone."""
        try:
            return handle()
        except EOFError:
            raise
        except Taken:
            return {"taken": True}, b""
        except NotQuiet as error:
            return {"busy": str(error)}, b""
        except OSError as error:
            name = os.fsdecode(error.filename) if error.filename is not None else None
            return {"errno": error.errno or 5, "message": error.strerror or str(error), "path": name}, b""
        except Exception as error:
            return {"fault": f"{type(error).__name__}: {error}"}, b""

    def _handle(self, request: dict[str, Any], payload: bytes, connection: socket.socket) -> Reply:
        operation = request["op"]
        if operation == "configure":
            return self._configure(request)
        if operation == "ping":
            return {"configured": self._configured.is_set(), "places": self._places}, b""
        self._configured.wait(UNCONFIGURED_S)
        if self._spoilt:
            raise ValueError(f"a checkpoint was not restored, so this sandbox is of no use: {self._spoilt}")
        if operation in {"fence", "lend"}:  # for attempts of which nothing is known yet
            return self._acts.fence(request) if operation == "fence" else self._checkpoint(request, payload, connection)
        self._acts.check(request)
        if operation == "stop":
            return self._acts.stop(request["act"])
        if "act" in request and operation != "upload":
            # Nobody need wait for it: the end of its connection ends nothing.
            return self._acts.once(
                request, lambda asker: self._replied(lambda: self._run(request, payload, connection, asker))
            )
        self._acts.stray(request)
        return self._run(request, payload, connection, Asker(connection.fileno(), partial(self._acts.check, request)))

    def _run(self, request: dict[str, Any], payload: bytes, connection: socket.socket, asker: Asker) -> Reply:
        operation = request["op"]
        if operation in self._watched:
            return self._run_watched(self._watched[operation], request, payload, asker)
        if operation in self._others:
            return self._others[operation](request, payload, connection)
        raise ValueError(f"unknown operation {operation!r}")

    def _interrupt(self) -> Reply:
        for tool in (self._shell, self._kernel, self._programs):
            tool.interrupt()
        return {}, b""

    def _run_watched(self, tool: Callable[..., Reply], request: dict[str, Any], payload: bytes, asker: Asker) -> Reply:
        """A shell or kernel that cannot start means that the sandboxed code has used up its limits."""
        with self._watchdog:
            try:
                header, output = tool(request, payload, asker)
            except ActCancelled:
                header, output = {"exit_code": 130, "ok": False, "stdout_bytes": 0}, b"[cancelled before it began]\n"
            except OSError as error:
                message = "[{} cannot be started: {}]".format(error.filename or "the program", error.strerror)
                header, output = {"exit_code": 126, "ok": False, "stdout_bytes": 0}, message.encode()
        return header, output + self._notices.take()

    def _bash(self, request: dict[str, Any], command: bytes, asker: Asker) -> Reply:
        timeout_s, is_input = request["timeout_s"], request["is_input"]
        return self._shell.run(command.decode(), timeout_s=timeout_s, is_input=is_input, asker=asker)

    def _ipython(self, request: dict[str, Any], code: bytes, asker: Asker) -> Reply:
        if self._outside is not None:
            return {"ok": False}, NO_PYTHON.encode()
        return self._kernel.run(code.decode(), timeout_s=request["timeout_s"], asker=asker)

    def _checkpoint(self, request: dict[str, Any], data: bytes, connection: socket.socket) -> Reply:
        """Marks, saves or restores; a sandbox in which that fails half-way answers nothing any more. The end of its
        connection cuts what a save asks of the kernel short.
        """
        unsaved = self._unsaved()
        if unsaved and request["op"] == "restore":
            return {"unrestorable": unsaved}, b""
        if unsaved:
            return {"lost": [f"all of it: {unsaved}"], "digest": "", "files": 0, "content_bytes": 0}, b""
        with self._making:
            if self._checkpoints is None:
                self._checkpoints = self._made_checkpoints()
        with self._watchdog:
            try:
                header, archive = self._checkpoints.answer(
                    request, data, connection.fileno(), partial(self._ask, connection)
                )
            except (NotQuiet, EOFError):
                raise
            except Exception as error:
                if request["op"] != "restore":
                    raise
                self._spoilt = str(error) or type(error).__name__
                return {"unrestorable": self._spoilt}, b""
            self._watchdog.sealed_bytes += int(header.get("sealed", request.get("sealed", 0)))
            return dict(header, sealed=self._watchdog.sealed_bytes), archive

    def _ask(self, connection: socket.socket, header: dict[str, Any], payload: bytes) -> dict[str, Any]:
        """Sends a reply, and gives the request that follows it. Raises `EOFError` where none comes soon."""
        send(connection, header, payload)
        connection.settimeout(LEND_S)
        try:
            return receive(connection)[0]
        except OSError as error:
            raise EOFError(str(error)) from error
        finally:
            connection.settimeout(None)

    def _unsaved(self) -> str:
        """Why a sandbox of this kind has no checkpoints; empty where it has."""
        if self._outside is not None:
            return "the image has no Python"
        return "" if self._places else "its files are its host's own"

    def _made_checkpoints(self) -> Checkpoints:
        parts = (self._acts, self._shell, self._kernel, self._editor, self._programs, self._proc)
        made: Checkpoints = compiled("Checkpoints")(parts, self._places, self._roots, self._disk_bytes)
        return made

    def _configure(self, settings: dict[str, Any]) -> Reply:
        """The answer has what a child shows of itself: its maker accepts no sandbox whose children are not sealed."""
        if self._configured.is_set():
            raise ValueError("configured already")
        limits = settings["limits"]
        own = dict(limits, cpu_s=None, open_files=max(512, limits.get("open_files") or 0))
        own["memory_bytes"] = limits["memory_bytes"] + SPARE_BYTES
        if limits.get("processes") is not None:
            own["processes"] = limits["processes"] + SPARE_PROCESSES
        limit(own)
        interpreter = settings.get("interpreter") or INTERPRETER
        self._shell = Shell(settings, self._children, self._proc)
        self._kernel = Kernel(settings, self._children, [interpreter, os.path.abspath(sys.argv[0]), "--kernel"])
        self._programs = Programs(settings, self._children, self._proc, self._roots)
        self._editor = Editor()
        self._watchdog = Watchdog(
            settings, self._proc, self._children, self._roots, self._notices, self._tools, self._interrupt,
            self._sockets if settings["own_network"] else None,
        )  # fmt: skip
        self._places = tuple(dict.fromkeys(filter(is_own_directory, map(os.path.normpath, settings["places"]))))
        self._disk_bytes: int = limits["disk_bytes"]
        self._offer(settings["cwd"])
        with contextlib.suppress(OSError):
            self._shell.start()
        threading.Thread(target=self._end_in_time, daemon=True).start()
        self._configured.set()
        return {"child_status": self._children.status_of_one()}, b""

    def _offer(self, cwd: str) -> None:
        self._watched = {"bash": self._bash, "ipython": self._ipython, "run": self._programs.run}
        self._others = {
            "edit": lambda request, _, __: self._editor.run(request),
            "write_file": lambda request, data, _: write_file(request, data, cwd),
            "read_file": lambda request, _, __: read_file(request, cwd),
            "upload": lambda request, _, connection: receive_file(request, connection, cwd, self._acts),
            "download": lambda request, _, connection: send_file(request, connection, cwd),
            "interrupt": lambda *_: self._interrupt(),
            **dict.fromkeys(("mark", "save", "restore"), self._checkpoint),
        }

    def _tools(self) -> set[int]:
        return {pid for pid in (self._shell.pid, self._kernel.pid) if pid is not None}

    def _end_in_time(self) -> None:
        self._watchdog.watch()
        os._exit(0)


def serve(
    listener: socket.socket, roots: tuple[int, ...], protect: Callable[[], None], outside: Outside | None = None
) -> None:
    """Serves until it is killed, told to end, or never configured. `protect` is called before the first thread."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    threading.stack_size(STACK_BYTES)
    proc = outside.proc if outside else Proc()
    children = Children(outside.sacrifice, outside.entry) if outside else Children(Sacrifice(), None)
    sockets = SocketBuffers(proc)
    protect()
    listener.setblocking(True)
    silent = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(silent, fd)
    ExecutionServer(listener, proc, children, roots, outside, sockets).serve()
    os._exit(0)


def is_own_directory(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def withhold_descriptors() -> None:
    """Keeps the descriptors that this process was given from every other process."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # of the listing itself
            os.set_inheritable(descriptor, descriptor < 3)


def inherited(number: str) -> socket.socket:
    return socket.socket(fileno=int(number))


def main() -> None:
    arguments = sys.argv[1:]
    bare = arguments[0] == "--bare"
    arguments = arguments[1:] if bare else arguments
    withhold_descriptors()
    if arguments[0] == "--kernel":
        run_kernel(arguments[1:])
    elif arguments[0] == "--front":
        run_front(lambda: serve(inherited(arguments[1]), (os.getppid(),), hide_from_tracers))
    elif arguments[0] == "--login":
        os._exit(login(arguments[1:]))
    elif arguments[0] == "--enter":
        outside = enter(arguments[2:], sealed=not bare)
        serve(inherited(arguments[1]), outside.roots, hide_from_tracers, outside)
    else:
        serve(inherited(arguments[0]), (1,), (lambda: None) if bare else hide_and_seal)


if __name__ == "__main__":
    main()
