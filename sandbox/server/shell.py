"""The persistent bash on a pseudo-terminal.

Bash reads commands from a pipe that no command can see; the terminal carries only what programs read and print. So
commands have no length limit, nothing is echoed, and typed-ahead input is never taken for a command. After each
command comes a second line that prints a random end mark; bash reads it only once the command is over, so the command
cannot print it beforehand.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from typing import Any

from sandbox.server.capture import Capture
from sandbox.server.children import Children, StartedChild
from sandbox.server.processes import Proc
from sandbox.server.shell_input import CommandPipe, command_line, done_line, mark, offer, refusal, set_up
from sandbox.server.terminal import CONTROL_KEYS, Terminal

QUIET_MS = 200  # after so long without output, look whether the command waits for input
SHELL_STOP_S = (0.0, 0.3, 1.0, 3.0)  # of stopping a command: SIGINT, SIGINT, SIGKILL to its group, SIGKILL to the shell
CALM_S = (0.3, 0.9, 2.7)  # how long bash may take to answer: the later ones also for what it was asked before


class Shell:
    """One bash, replaced by a new one when it ends. Calls are serialised by `lock`."""

    def __init__(self, settings: dict[str, Any], children: Children, proc: Proc) -> None:
        self._settings = settings
        self._children, self._proc = children, proc
        self._cwd: str = settings["cwd"]
        self._child: StartedChild | None = None
        self._typed = b""  # waits to be taken by the terminal
        self._mark = b""  # of the command that runs; empty: none
        self._done = b""  # the line that prints it
        self._shaken = False  # an interrupt was sent, and may not have arrived
        self._first_mark = b""  # of the new shell's own set-up, until a command came
        self._wake, self._waker = os.pipe()
        self.lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        child = self._child
        return None if child is None else child.pid

    def start(self) -> None:
        """Starts bash and does not wait for it: the first command will."""
        terminal = Terminal(self._proc)
        reader, writer = os.pipe()
        settings = self._settings
        try:
            self._child = self._children.start(
                ["bash", "--norc", "--noprofile", "--noediting", "-i", "-s"],
                (reader, terminal.slave, terminal.slave),
                env=settings["env"], cwd=self._cwd, limits=settings["limits"], terminal=True,
            )  # fmt: skip
        except OSError:
            terminal.close()
            os.close(writer)
            raise
        finally:
            os.close(reader)
        self._terminal, self._commands = terminal, CommandPipe(writer)
        self._typed = b""
        self._commands.add(set_up(terminal.name))
        self._shaken = False
        self._say_done()
        self._first_mark = self._mark
        self._mark = b""

    def _say_done(self) -> None:
        nonce = os.urandom(12).hex().encode()
        self._mark, self._done = mark(nonce), done_line(nonce)
        self._commands.add(self._done)

    def interrupt(self) -> None:
        """Stops what runs now, whether somebody waits for it or not."""
        if self.lock.acquire(blocking=False):
            try:
                if self._mark:
                    self._follow(Capture(1024), time.monotonic(), -1)
            finally:
                self.lock.release()
        else:
            os.write(self._waker, b"!")

    def run(self, command: str, *, timeout_s: float, is_input: bool, hangup: int) -> tuple[dict[str, Any], bytes]:
        """One command, or input for the one that runs. `hangup` turns readable when nobody waits any more."""
        began = time.monotonic()
        with self.lock:
            capture = Capture(self._settings["output_bytes"])
            if self._child is not None and select.select([self._child.exit_fd], [], [], 0)[0]:
                self._died(bytearray(), capture)
            if self._child is None:
                self.start()
            self._forget_wakes()
            running = bool(self._mark)
            edits_lines = is_input and self._terminal.edits_lines()
            refused = refusal(command, is_input=is_input, running=running, edits_lines=edits_lines)
            if refused:
                capture.add(refused.encode())
                result: dict[str, Any] = {"exit_code": None if running else 1}
            else:
                if is_input:
                    self._type(command)
                else:
                    self._submit(command, capture)
                result = self._follow(capture, began + timeout_s, hangup)
            output, dropped = capture.result()
            return dict(result, dropped_bytes=dropped, seconds=time.monotonic() - began), output

    def _submit(self, command: str, capture: Capture) -> None:
        if self._first_mark:
            self._mark, self._first_mark = self._first_mark, b""
            self._follow(Capture(1024), time.monotonic() + 10.0, -1)
        if self._shaken and self._child is not None:
            self._calm(capture)
        if self._child is None:
            self.start()
            self._submit(command, capture)
            return
        self._terminal.settle()
        self._commands.add(command_line(command, self._terminal.name))
        self._say_done()

    def _calm(self, capture: Capture) -> None:
        """Makes sure that bash has taken the interrupts that were sent, or ends it, and says so.

        One that comes after the end of its command makes bash drop what it reads then, which must not be a command.
        """
        assert self._child is not None
        self._shaken = False
        for answer_s in CALM_S:
            self._say_done()
            seen, until = bytearray(), time.monotonic() + answer_s
            while time.monotonic() < until:
                ready = self._wait(int(answer_s * 1000), -1) or set()
                if self._child.exit_fd in ready:
                    self._died(bytearray(), capture)
                    return
                if self._terminal.master in ready and self._read(seen, Capture(0)):
                    self._ended(seen, Capture(0))
                    return
        self._child.signal_group(signal.SIGKILL)
        self._follow(capture, time.monotonic() + SHELL_STOP_S[-1], -1)

    def _type(self, text: str) -> None:
        key = CONTROL_KEYS.get(text.strip())
        if key is None:
            self._typed += text.encode() + (b"" if text.endswith("\n") else b"\n")
        elif key == b"\x03":
            self._signal_foreground(signal.SIGINT)
        else:
            self._typed += key

    def _follow(self, capture: Capture, deadline: float, hangup: int) -> dict[str, Any]:
        """Reads until the end mark, the shell's own end, a wait for input, or the deadline, which stops the command."""
        assert self._child is not None
        seen = bytearray()  # what could still be the start of the mark
        step, timed_out, stopping_since = 0, False, 0.0
        while True:
            now = time.monotonic()
            if now >= deadline and not step:
                timed_out, stopping_since, step = True, now, 1
                self._stop(0)
            while step and step < len(SHELL_STOP_S) and now >= stopping_since + SHELL_STOP_S[step]:
                self._stop(step)
                step += 1
            ready = self._wait(self._until(now, deadline, step, stopping_since), hangup)
            if ready is None and not step and not self._typed and self._terminal.is_read():
                ready = self._wait(0, hangup)  # for what it printed just before it began to wait
                if ready is None:
                    capture.add(bytes(seen))
                    return {"exit_code": None, "timed_out": False}
            ready = ready or set()
            if (self._wake in ready or hangup in ready) and not step:
                hangup, stopping_since, step = -1, now, 1
                self._forget_wakes()
                self._stop(0)
            if self._terminal.master in ready and self._read(seen, capture):
                return {"exit_code": self._ended(seen, capture), "timed_out": timed_out}
            if self._child.exit_fd in ready:
                return {"exit_code": self._died(seen, capture), "timed_out": timed_out}

    def _until(self, now: float, deadline: float, step: int, stopping_since: float) -> int:
        """Milliseconds until something is due."""
        if not step:
            return min(QUIET_MS, max(0, int((deadline - now) * 1000) + 1))
        if step < len(SHELL_STOP_S):
            return max(0, int((stopping_since + SHELL_STOP_S[step] - now) * 1000) + 1)
        return 1000

    def _wait(self, timeout_ms: int, hangup: int) -> set[int] | None:
        """The descriptors that turned readable; None when nothing at all happened."""
        assert self._child is not None
        poll = select.poll()
        poll.register(self._terminal.master, select.POLLIN | (select.POLLOUT if self._typed else 0))
        poll.register(self._child.exit_fd, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        if hangup >= 0:
            poll.register(hangup, select.POLLIN)
        if not self._commands.offer():
            poll.register(self._commands.fd, select.POLLOUT)
        events = dict(poll.poll(timeout_ms))
        if events.get(self._terminal.master, 0) & select.POLLOUT:
            self._typed = offer(self._terminal.master, self._typed)
        ready = {fd for fd, event in events.items() if event & ~select.POLLOUT}
        ready.discard(self._commands.fd)
        return ready if events else None

    def _read(self, seen: bytearray, capture: Capture) -> bool:
        """Takes what the terminal has; true once the whole end mark is there, which then starts `seen`."""
        try:
            seen += os.read(self._terminal.master, 65536)
        except OSError:
            return False
        at = seen.find(self._mark)
        if at < 0:
            keep = len(self._mark) - 1
            edge = seen.rfind(b"\x1e", max(0, len(seen) - keep))
            cut = len(seen) if edge < 0 else edge
            capture.add(bytes(seen[:cut]))
            del seen[:cut]
            return False
        capture.add(bytes(seen[:at]))
        del seen[:at]
        return seen.find(b"\x1e", len(self._mark)) > 0

    def _ended(self, seen: bytearray, capture: Capture) -> int:
        assert self._child is not None
        end = seen.find(b"\x1e", len(self._mark))
        said = bytes(seen[len(self._mark) : end])
        code = int(said) if said.isdigit() and len(said) <= 3 else 1  # a command may have written the mark itself
        capture.add(bytes(seen[end + 1 :]))
        self._mark = b""
        with contextlib.suppress(OSError):
            self._cwd = self._proc.link(self._child.pid, "cwd")
        return code

    def _died(self, seen: bytearray, capture: Capture) -> int:
        """The shell is gone: takes the rest of its output and says so; the next command starts a new one."""
        assert self._child is not None
        code = self._children.forget(self._child)
        with contextlib.suppress(OSError):
            while True:
                data = os.read(self._terminal.master, 65536)
                if not data:
                    break
                seen += data
        capture.add(bytes(seen))
        self._terminal.close()
        self._commands.close()
        self._child, self._mark = None, b""
        capture.add(
            b"\n[the shell ended with exit code %d; the next command gets a new one in %s: variables, functions and "
            b"options are lost]\n" % (code, os.fsencode(self._cwd))
        )
        return code

    def _stop(self, step: int) -> None:
        assert self._child is not None
        if step < 2:
            self._typed = b""
            if self._commands.unread_bytes() > len(self._done):
                return  # of the command itself: bash would take the rest of it for commands
            self._signal_foreground(signal.SIGINT)
            if step:
                self._commands.add(self._done)  # the first interrupt may have met that line
        elif step == 2:
            self._signal_foreground(signal.SIGKILL)
        else:
            self._child.signal_group(signal.SIGKILL)

    def _signal_foreground(self, number: int) -> None:
        assert self._child is not None
        self._shaken = True
        with contextlib.suppress(OSError):
            group = os.tcgetpgrp(self._terminal.master)
            if number != signal.SIGKILL or group != self._child.pid:
                os.killpg(group, number)

    def _forget_wakes(self) -> None:
        while select.select([self._wake], [], [], 0)[0]:
            os.read(self._wake, 64)
