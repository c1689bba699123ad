"""The persistent bash on a pseudo-terminal.

Bash reads commands from a socket that no program can see, and says there that one is over; the terminal carries only
what programs read and print. So commands have no length limit, nothing is echoed, and typed-ahead input is never taken
for a command. The end of a command is said with a random mark. A command can learn it (a trap is told what runs next)
and say it too early; what it gets for that is an answer without the rest of its own output.

The terminal wakes who reads it by way of a kernel thread, the socket at once. What was written to the terminal before
the mark can be read when the mark has come, since a read of an empty terminal waits for that thread.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from typing import Any

from sandbox.server.acts import Asker
from sandbox.server.capture import Capture
from sandbox.server.children import Children, StartedChild
from sandbox.server.processes import Proc
from sandbox.server.shell_input import SET_UP, CommandSocket, StopSteps, command_line, done_line, mark, refusal
from sandbox.server.terminal import CONTROL_KEYS, Terminal

QUIET_S = 0.2  # after so long without output, look whether the command waits for input
REMIND_S = 0.005  # after so long, first look whether bash has left the rest of its line
LAST_READS = 16  # after the end mark, for others may print without end; a terminal holds less
ENDED_S = 3.0  # for bash to be gone after its SIGKILL
OWN_S = 10.0  # for a line of ours
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
        self._done = b""  # the line that says it
        self._shaken = False  # an interrupt was sent, and may not have arrived
        self._first_mark = b""  # of the new shell's own set-up, until a command came
        self._wake, self._waker = os.pipe()
        self._events = select.poll()
        self._events.register(self._wake, select.POLLIN)
        self.lock = threading.Lock()
        self.calls = 0  # of agents, that may have changed something
        self._unsaid = b""  # for the next call: that the shell has ended meanwhile
        self.taught: int | None = -1  # the process that can say its state
        self.stands = ""  # its directory, by the name that it had when it said so

    @property
    def pid(self) -> int | None:
        child = self._child
        return None if child is None else child.pid

    @property
    def ended(self) -> bool:
        """True when there is none, or will be none when somebody looks."""
        child = self._child
        return child is None or bool(select.select([child.exit_fd], [], [], 0)[0])

    def start(self) -> None:
        """Starts bash and does not wait for it: the first command will."""
        terminal, commands = Terminal(self._proc), CommandSocket()
        settings = self._settings
        try:
            self._child = self._children.start(
                ["bash", "--norc", "--noprofile", "--noediting", "-i", "-s"],
                (commands.shell_fd, terminal.slave, terminal.slave),
                env=settings["env"], cwd=self._cwd, limits=settings["limits"], terminal=True,
            )  # fmt: skip
        except OSError:
            terminal.close()
            commands.close()
            raise
        self._terminal, self._commands = terminal, commands
        for fd in (terminal.master, commands.fd, self._child.exit_fd):
            self._events.register(fd, select.POLLIN)
        self._typed = b""
        self._commands.add(SET_UP.encode())
        self._shaken = False
        self._say()
        self._first_mark = self._mark
        self._mark = b""

    def _say(self, command: str | None = None, *, ours: bool = False) -> None:
        """Gives bash a command, if there is one, and what it is to answer then. A line of ours hears the socket."""
        nonce = os.urandom(12).hex().encode()
        self._mark, self._done = mark(nonce), done_line(nonce)
        if command is None or ours:
            self._commands.add((command or "").encode() + self._done)
        else:
            self._commands.add(command_line(command, nonce))

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

    def run(self, command: str, *, timeout_s: float, is_input: bool, asker: Asker) -> tuple[dict[str, Any], bytes]:
        """One command, or input for the one that runs. Raises what `asker.begin` raises."""
        began = time.monotonic()
        with self.lock:
            asker.begin()
            self.calls += 1
            capture = Capture(self._settings["output_bytes"])
            capture.add(self._unsaid)
            self._unsaid = b""
            self._look(capture)
            if self._child is None:
                self.start()
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
                result = self._follow(capture, began + timeout_s, asker.hangup)
            output, dropped = capture.result()
            return dict(result, dropped_bytes=dropped, seconds=time.monotonic() - began), output

    def tell(self, command: str, *, ours: bool) -> bytes | None:
        """Runs a command with `lock` held, and gives what it says on the socket; one not `ours` runs like an agent's.

        None: another one runs, or the shell has ended.
        """
        noticed = Capture(1024)
        self._look(noticed)
        self._unsaid += noticed.result()[0]
        if self._mark:
            return None
        if self._child is None:
            self.start()
        self._submit(command, Capture(0), ours=ours)
        self._commands.kept = bytearray()
        result = self._follow(Capture(0), time.monotonic() + OWN_S, -1)
        kept, self._commands.kept = self._commands.kept, None
        ended = self._child is not None and result["exit_code"] is not None and not result["timed_out"]
        return bytes(kept or b"") if ended else None

    def _look(self, capture: Capture) -> None:
        """Takes note of what has happened since the last command."""
        ready = dict(self._events.poll(0))
        if self._wake in ready:
            self._forget_wakes()
        if self._child is not None and self._child.exit_fd in ready:
            self._died(capture)

    def _submit(self, command: str, capture: Capture, *, ours: bool = False) -> None:
        if self._first_mark:
            self._mark, self._first_mark = self._first_mark, b""
            self._follow(Capture(1024), time.monotonic() + 10.0, -1)
        if self._shaken and self._child is not None:
            self._calm(capture)
        if self._child is None:
            self.start()
            self._submit(command, capture, ours=ours)
            return
        self._terminal.settle()
        self._say(command, ours=ours)

    def _calm(self, capture: Capture) -> None:
        """Makes sure that bash has taken the interrupts that were sent, or ends it, and says so.

        One that comes after the end of its command makes bash drop what it reads then, which must not be a command.
        """
        assert self._child is not None
        self._shaken = False
        for answer_s in CALM_S:
            self._say()
            until = time.monotonic() + answer_s
            while time.monotonic() < until:
                ready = self._wait(int(answer_s * 1000), -1) or set()
                if self._child.exit_fd in ready:
                    self._died(capture)
                    return
                self._read(Capture(0), 1 if self._terminal.master in ready else 0)
                if self._commands.fd in ready and self._ended(Capture(0)) is not None:
                    return
        self._child.signal_group(signal.SIGKILL)
        self._follow(capture, time.monotonic() + ENDED_S, -1)

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
        began = time.monotonic()
        stopping = StopSteps(deadline)
        quiet_at, remind_at = began + QUIET_S, began + REMIND_S
        ready: set[int] | None = set()
        while True:
            now = time.monotonic()
            if ready is not None:
                quiet_at = now + QUIET_S
            elif not stopping.begun and now >= min(quiet_at, deadline):
                if self._waits_for_input(hangup):
                    return {"exit_code": None, "timed_out": False}
                quiet_at = now + QUIET_S
            for step in stopping.steps(now):
                self._stop(step)
            if now >= remind_at:
                remind_at = now + min(QUIET_S, now - began)
                self._remind()
            due = min(remind_at, quiet_at, stopping.due(now))
            ready = self._wait(max(0, int((due - now) * 1000) + 1), hangup)
            if ready and (self._wake in ready or hangup in ready) and not stopping.begun:
                hangup = -1
                self._forget_wakes()
                stopping.ask(now)
            code = self._take(ready or set(), capture)
            if code is not None:
                return {"exit_code": code, "timed_out": stopping.timed_out}

    def _take(self, ready: set[int], capture: Capture) -> int | None:
        """Output, and the exit code of the command or of the shell itself. None: neither is over."""
        assert self._child is not None
        if self._terminal.master in ready:
            self._read(capture, 1)
        code = self._ended(capture) if self._commands.fd in ready else None
        return self._died(capture) if code is None and self._child.exit_fd in ready else code

    def _waits_for_input(self, hangup: int) -> bool:
        """Also: nothing has happened since, for it may have printed something just before it began to wait."""
        return not self._typed and self._terminal.is_read() and self._wait(0, hangup) is None

    def _remind(self) -> None:
        """Asks for the end mark again if bash is about to read a line: an error may have ended the last one early."""
        if self._commands.unread_bytes() == 0 and self._awaits_line():
            self._commands.add(self._done)

    def _wait(self, timeout_ms: int, hangup: int) -> set[int] | None:
        """The descriptors that turned readable; None when nothing at all happened."""
        assert self._child is not None
        master, commands = self._terminal.master, self._commands.fd
        typing, submitting = bool(self._typed), not self._commands.offer()
        if typing:
            self._events.modify(master, select.POLLIN | select.POLLOUT)
        if submitting:
            self._events.modify(commands, select.POLLIN | select.POLLOUT)
        if hangup >= 0:
            self._events.register(hangup, select.POLLIN)
        events = self._events.poll(timeout_ms)
        if hangup >= 0:
            self._events.unregister(hangup)
        if submitting:
            self._events.modify(commands, select.POLLIN)
        if typing:
            self._events.modify(master, select.POLLIN)
            if dict(events).get(master, 0) & select.POLLOUT:
                self._typed = self._terminal.feed(self._typed)
        return {fd for fd, event in events if event & ~select.POLLOUT} if events else None

    def _read(self, capture: Capture, reads: int) -> None:
        """Takes what the terminal has."""
        with contextlib.suppress(OSError):
            for _ in range(reads):
                capture.add(os.read(self._terminal.master, 65536))

    def _ended(self, capture: Capture) -> int | None:
        """The exit code of the command that runs, with the rest of its output taken. None: it is not over."""
        assert self._child is not None
        code = self._commands.exit_code(self._mark)
        if code is not None:
            self._read(capture, LAST_READS)
            self._mark = b""
            with contextlib.suppress(OSError):
                self._cwd = self._proc.link(self._child.pid, "cwd")
        return code

    def _died(self, capture: Capture) -> int:
        """The shell is gone: takes the rest of its output and says so; the next command starts a new one."""
        assert self._child is not None
        for fd in (self._terminal.master, self._commands.fd, self._child.exit_fd):
            self._events.unregister(fd)
        code = self._children.forget(self._child)
        self._read(capture, LAST_READS)
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
            if step:
                self._commands.add(self._done)  # the first interrupt may have met that line
            if not self._reads_command(surely=step > 0):
                self._signal_foreground(signal.SIGINT)
        elif step == 2:
            self._signal_foreground(signal.SIGKILL)
        else:
            self._child.signal_group(signal.SIGKILL)

    def _reads_command(self, *, surely: bool) -> bool:
        """True while bash has the command before it and has not begun it: interrupted there, it would take the rest of
        it for commands. Once it has taken all of it into its memory, that is not sure: the command may be over.
        """
        return self._awaits_line() and not (surely and self._commands.unread_bytes() <= 2 * len(self._done))

    def _awaits_line(self) -> bool:
        """True while bash's standard input is what it reads commands from, so that it runs none."""
        assert self._child is not None
        try:
            return self._proc.link(self._child.pid, "fd/0") == self._commands.name
        except OSError:
            return False

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
