"""A shell in a running sandbox on a person's terminal: the host's side, which relays between two terminals.

The shell's terminal is one of its own (ptyprocess makes it), so nothing inside ever has the person's in its hands.
"""

import os
import select
import signal
import sys
import termios
import tty
from pathlib import Path
from types import FrameType
from typing import Any, Self

from sandbox.errors import SandboxError, SandboxGone, SandboxUnavailable
from sandbox.host import unprivileged
from sandbox.isolators.inside import ENVIRONMENT
from sandbox.isolators.local import KIND as LOCAL
from sandbox.isolators.payload import server_code
from sandbox.lifetime import label

CHUNK_BYTES = 1 << 16
MOST_WAITING_BYTES = 1 << 16  # typed or pasted, and not yet read inside
ENDINGS = (signal.SIGTERM, signal.SIGHUP)
INPUT, OUTPUT = 0, 1


def shell(made: label.Label, directory: Path) -> int:
    """A shell in the sandbox of this label and directory, on standard input and output, until it ends; its exit code.

    Blocks. Raises `SandboxError`.
    """
    require_shell(made, directory)
    spawn = _spawner()
    if not (os.isatty(INPUT) and os.isatty(OUTPUT)):
        raise SandboxError("a shell needs a terminal as standard input and output (with ssh: `ssh -t`)")
    code = os.memfd_create("login", 0)
    try:
        with os.fdopen(os.dup(code), "wb") as stream:
            stream.write(server_code(sys.executable))
        command = [sys.executable, "-I", "-S", f"/proc/self/fd/{code}", "--login", *login_arguments(made)]
        with RawTerminal() as person:
            env = {**ENVIRONMENT, "TERM": os.environ.get("TERM", "dumb"), **label.marked(directory)}
            return person.relay(spawn(command, env=env, dimensions=person.size(), pass_fds=(code,)))
    finally:
        os.close(code)


def require_shell(made: label.Label, directory: Path) -> None:
    """Raises `SandboxError` for a sandbox in which there can be no shell, with what to do."""
    name = f"sandbox {made.sandbox_id}"
    if made.unfinished:
        raise SandboxError(f"{name} is still starting: try again in a second")
    if not made.alive:
        raise SandboxGone(
            f"{name} is dead, or of another machine: its process {made.pid} does not run here. If its node "
            f"{made.node!r} is another machine, run this command there"
        )
    if made.kind == LOCAL:
        raise SandboxError(
            f"{name} is of kind {LOCAL!r}, plain processes of this machine, which any shell sees; its files are in "
            f"{directory}"
        )


def login_arguments(made: label.Label) -> list[str]:
    """Arguments of `sandbox.server.login`."""
    user = [] if os.geteuid() else unprivileged.identity()
    return [str(made.pid), str(made.server_pid or made.pid), "\n".join(made.cgroups), *map(str, user)]


def _spawner() -> Any:
    try:
        from ptyprocess import PtyProcess
    except ImportError:
        raise SandboxUnavailable("a shell needs ptyprocess: pip install 'prorl-mq[service]'") from None
    return PtyProcess.spawn


class RawTerminal:
    """The person's terminal, raw until the end of the context, which a signal to end brings about, too."""

    def __init__(self) -> None:
        self._modes = termios.tcgetattr(INPUT)
        self._awake, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._typed = b""

    def __enter__(self) -> Self:
        for number in ENDINGS:
            signal.signal(number, _end)
        signal.signal(signal.SIGWINCH, lambda *_: None)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        tty.setraw(INPUT)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(-1)
        termios.tcsetattr(INPUT, termios.TCSADRAIN, self._modes)
        os.close(self._awake)
        os.close(self._wake)

    def size(self) -> tuple[int, int]:
        """Rows and columns."""
        columns, rows = os.get_terminal_size(INPUT)
        return rows, columns

    def relay(self, inner: Any) -> int:
        """Passes on until the inner process, or the person's terminal, has ended; the inner exit code."""
        os.set_blocking(inner.fd, False)
        process = os.pidfd_open(inner.pid)
        try:
            while self._pass_on(inner, process):
                pass
        finally:
            os.close(process)
            inner.fileobj.close()  # the inner terminal hangs up, and what is left there ends
            inner.wait()
        return int(inner.exitstatus if inner.signalstatus is None else 128 + inner.signalstatus)

    def _pass_on(self, inner: Any, process: int) -> bool:
        """Whatever is there now; false at the end."""
        sources = [inner.fd, process, self._awake]
        sources += [INPUT] if len(self._typed) < MOST_WAITING_BYTES else []
        readable, writable, _ = select.select(sources, [inner.fd] if self._typed else [], [])
        if self._awake in readable:
            os.read(self._awake, CHUNK_BYTES)
            inner.setwinsize(*self.size())
        if writable:
            self._typed = self._typed[_write(inner.fd, self._typed) :]
        if INPUT in readable:
            typed = os.read(INPUT, CHUNK_BYTES)
            self._typed += typed
            if not typed:
                return False
        if inner.fd in readable:
            return _show(inner.fd)
        return process not in readable


def _write(descriptor: int, data: bytes) -> int:
    try:
        return os.write(descriptor, data)
    except BlockingIOError:
        return 0


def _show(descriptor: int) -> bool:
    """Shows a piece of output; false when the terminal has no more programs."""
    try:
        output = memoryview(os.read(descriptor, CHUNK_BYTES))
    except BlockingIOError:
        return True
    except OSError:
        return False
    while output:
        output = output[os.write(OUTPUT, output) :]
    return True


def _end(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)
