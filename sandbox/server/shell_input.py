"""The shell's input: the socket that bash reads, the lines that go into it, what is refused, and how commands end."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import termios
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SHELL_STOP_S = (0.0, 0.3, 1.0, 3.0)  # of stopping a command: SIGINT, SIGINT, SIGKILL to its group, SIGKILL to the shell
TERMINAL_FD = 19  # in bash, not inherited by what it starts
KEPT_BYTES = 16 << 20
HEARD_BYTES = 64  # more than an end mark with its exit code


class CommandSocket:
    """Both ends of it, of which bash has one as its standard input. The server's does not block.

    While a command runs, bash's standard input is the terminal, and the socket a descriptor that programs do not
    inherit. With bash's end open here, too, the server's never hangs up.
    """

    def __init__(self) -> None:
        self._ours, self._shells = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._ours.setblocking(False)
        self.fd, self.shell_fd = self._ours.fileno(), self._shells.fileno()
        self.name = f"socket:[{os.fstat(self.shell_fd).st_ino}]"  # as /proc shows it among bash's descriptors
        self._waiting = b""  # has no room in the socket yet
        self._heard = bytearray()  # could still be the start of a mark
        self.kept: bytearray | None = None  # what is said before the mark, while somebody asks for it

    def add(self, line: bytes) -> None:
        self._waiting += line

    def offer(self) -> bool:
        """Writes what fits; whether that was all."""
        if self._waiting:
            self._waiting = offer(self.fd, self._waiting)
        return not self._waiting

    def unread_bytes(self) -> int:
        """Number of bytes that bash has not taken yet. It takes up to 1024 at once, and looks at them one by one."""
        in_socket = struct.unpack("i", fcntl.ioctl(self.shell_fd, termios.FIONREAD, bytes(4)))[0]
        return int(in_socket) + len(self._waiting)

    def exit_code(self, mark: bytes) -> int | None:
        """Reads once. The exit code that follows this mark; None: it has not come."""
        try:
            self._heard += os.read(self.fd, 65536)
        except OSError:
            return None
        at = self._heard.find(mark)
        end = self._heard.find(b"\n", at) if at >= 0 else -1
        if end < 0:
            self._keep(self._heard[:-HEARD_BYTES])
            del self._heard[:-HEARD_BYTES]
            return None
        self._keep(self._heard[:at])
        said = bytes(self._heard[at + len(mark) : end])
        self._heard.clear()
        return int(said) if said.isdigit() and len(said) <= 3 else 1  # a command may have written the mark itself

    def _keep(self, said: bytearray) -> None:
        if self.kept is not None and len(self.kept) < KEPT_BYTES:
            self.kept += said

    def close(self) -> None:
        self._ours.close()
        self._shells.close()


def offer(fd: int, data: bytes) -> bytes:
    """Writes what fits; the rest comes back."""
    try:
        return data[os.write(fd, data[:65536]) :]
    except BlockingIOError:
        return data
    except OSError:
        return b""


# The terminal is opened once: as the copy of standard error that bash saves while it is closed, which programs do not
# inherit. `__prorl_done` answers once for each nonce, opens the terminal again should a command have closed it, and
# hides prompts that the command has set, such as a virtual environment's. It returns the command's exit code, in front
# of `&&` and without output: what an ERR trap would say of it might come into the next answer.
SET_UP = (
    "PS1= PS2= PS0= PROMPT_COMMAND=; set +o history +H; { exec FD<&10; } 2>&-; __prorl_said=; "
    '__prorl_done() { local s=$?; if [[ $1 != "$__prorl_said" ]]; then __prorl_said=$1; '
    'builtin printf \'%s;%s\\n\' "$1" "$s" >&0; PS1= PS2= PS0=; builtin unset PROMPT_COMMAND; '
    "[[ -t FD ]] || exec FD<>/dev/tty; fi; "
    "case $- in *e*) builtin return 0;; esac; builtin return $s; }; readonly -f __prorl_done\n"
).replace("FD", str(TERMINAL_FD))


def command_line(command: str, nonce: bytes) -> bytes:
    text = command.replace("\0", "").encode("utf-8", "surrogateescape").replace(b"'", b"'\\''")
    return b"eval '" + text + b"' <&%d; { __prorl_done %s && \\builtin true; } >&- 2>&-\n" % (TERMINAL_FD, nonce)


def done_line(nonce: bytes) -> bytes:
    """For a command that has ended its whole line, as an interrupted one does. The empty line before it ends what is
    left of such a line.
    """
    return b"\n{ __prorl_done %s && \\builtin true; } >&- 2>&-\n" % nonce


def mark(nonce: bytes) -> bytes:
    """The start of what bash answers; the exit code and the end of the line follow."""
    return nonce + b";"


TERMINAL_LINE_BYTES = 4095  # the kernel drops what is beyond, while it edits lines
BUSY = (
    "[the previous command is still running and waits for input: answer it with is_input, or stop it with is_input "
    "and the text C-c; this command was not run]"
)
IDLE = "[no command is running, so there is nothing to give this input to]"
LONG_LINE = (
    "[nothing was sent: a line of %d bytes is longer than a terminal takes (%d); write it to a file, and give the "
    "program that]"
)


def refusal(text: str, *, is_input: bool, running: bool, edits_lines: bool) -> str:
    """Why this cannot be given to the shell as it is now; empty when it can."""
    if is_input != running:
        return BUSY if running else IDLE
    if not is_input or not edits_lines:
        return ""
    longest = max(map(len, text.encode("utf-8", "replace").split(b"\n")))
    return LONG_LINE % (longest, TERMINAL_LINE_BYTES) if longest > TERMINAL_LINE_BYTES else ""


class StopSteps:
    """Stops a command, step by step. It begins at the deadline, or when somebody asks for it."""

    def __init__(self, deadline: float) -> None:
        self._since = deadline
        self._asked = False
        self._step = 0  # the next one

    @property
    def begun(self) -> bool:
        return self._step > 0

    @property
    def timed_out(self) -> bool:
        return self.begun and not self._asked

    def ask(self, now: float) -> None:
        self._since, self._asked = now, True

    def steps(self, now: float) -> Iterator[int]:
        """Yields the steps that are due."""
        if not self.begun and now >= self._since:
            self._since = now  # however late: each step gets its time
        while now >= self.due(now):
            self._step += 1
            yield self._step - 1

    def due(self, now: float) -> float:
        """When the next step is, or else a look at whether it has helped."""
        return self._since + SHELL_STOP_S[self._step] if self._step < len(SHELL_STOP_S) else now + 1.0
