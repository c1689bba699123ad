"""The shell's input: the pipe that bash reads, the lines that go into it, and the refusal of what it cannot take."""

from __future__ import annotations

import fcntl
import os
import struct
import termios


class CommandPipe:
    """Its writing end, which does not block."""

    def __init__(self, writer: int) -> None:
        os.set_blocking(writer, False)
        self.fd = writer
        self._waiting = b""  # has no room in the pipe yet

    def add(self, line: bytes) -> None:
        self._waiting += line

    def offer(self) -> bool:
        """Writes what fits; whether that was all."""
        if self._waiting:
            self._waiting = offer(self.fd, self._waiting)
        return not self._waiting

    def unread_bytes(self) -> int:
        """Number of bytes that bash has not taken yet, which it does byte by byte."""
        in_pipe = struct.unpack("i", fcntl.ioctl(self.fd, termios.FIONREAD, bytes(4)))[0]
        return int(in_pipe) + len(self._waiting)

    def close(self) -> None:
        os.close(self.fd)


def offer(fd: int, data: bytes) -> bytes:
    """Writes what fits; the rest comes back."""
    try:
        return data[os.write(fd, data[:65536]) :]
    except BlockingIOError:
        return data
    except OSError:
        return b""


# `quiet` hides prompts that the command has set, such as a virtual environment's; nothing is printed by either.
SET_UP = (
    "PS1= PS2= PS0= PROMPT_COMMAND=; set +o history +H; __prorl_quiet() {{ local s=$?; PS1= PS2= PS0=; "
    "unset PROMPT_COMMAND; case $- in *e*) return 0;; esac; return $s; }}; __prorl_done() {{ local s=$?; "
    'printf \'\\036%s;%s\\036\' "$1" "$s" >{tty}; case $- in *e*) return 0;; esac; return $s; }}; '
    "readonly -f __prorl_done __prorl_quiet\n"
)


def set_up(tty: str) -> bytes:
    return SET_UP.format(tty=tty).encode()


def command_line(command: str, tty: str) -> bytes:
    text = command.replace("\0", "").encode("utf-8", "surrogateescape").replace(b"'", b"'\\''")
    return b"eval '" + text + b"' <" + tty.encode() + b"; { __prorl_quiet; } 2>&-\n"


def done_line(nonce: bytes) -> bytes:
    """The empty line before it ends what a syntax error left open."""
    return b"\n{ __prorl_done " + nonce + b"; } 2>&-\n"


def mark(nonce: bytes) -> bytes:
    """The start of what `done_line` prints; the exit code and another such character follow."""
    return b"\x1e" + nonce + b";"


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
