"""The persistent kernel's keeper: a child process that runs cells, replaced by a new one when it ends."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import threading
import time
from typing import Any

from sandbox.server.acts import Asker
from sandbox.server.capture import Capture
from sandbox.server.cells import LENGTH
from sandbox.server.children import Children, StartedChild

ANSWER_BYTES = 1 << 20
IMAGES = 1000  # of one cell
OBEY_S = 20.0  # for an order of ours
SOON_MS = 2  # for which only the answer is looked for: the output of most cells comes just before it
MEMORY = "/dev/shm"  # noqa: S108 - inside
CELL_STOP_S = (0.0, 0.7, 1.5)  # of stopping a cell: SIGINT, SIGINT, SIGKILL


def _image(told: Any) -> dict[str, Any]:
    """Raises `TypeError`, `KeyError`, `ValueError` or `OverflowError` for what a cell has made up."""
    return {"path": str(told["path"]), "mime": str(told["mime"]), "size_bytes": int(told["size_bytes"]) & 0x7FFFFFFF}


def memory_file() -> int:
    """A file in memory that counts as one of the sandbox's. Where there can be none, writing to it is an error."""
    try:
        return os.open(MEMORY, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        return os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)


class Kernel:
    """One kernel process. Its cells print into one pipe and answer on another, so nothing printed is an answer."""

    def __init__(self, settings: dict[str, Any], children: Children, argv: list[str]) -> None:
        self._settings = settings
        self._children = children
        self._argv = argv
        self._child: StartedChild | None = None
        self._cells = self._answers = self._output = -1
        self._memory = -1  # a file that both sides have, for what is too long for an answer
        self._answer = bytearray()  # as far as it has come
        self._silent = False  # the kernel has closed its output
        self._wake, self._waker = os.pipe()
        self.lock = threading.Lock()
        self._unsaid = b""  # for the next cell: that the kernel has ended meanwhile
        self.cells = 0  # that were begun, in this kernel and those before it

    @property
    def pid(self) -> int | None:
        child = self._child
        return None if child is None else child.pid

    @property
    def memory_name(self) -> str:
        """The name that /proc shows of the file for what is too long for an answer; empty without a kernel."""
        if self._child is None:
            return ""
        return f"{MEMORY}/#{os.fstat(self._memory).st_ino} (deleted)"

    @property
    def ended(self) -> bool:
        """True when there is none, or will be none when somebody looks."""
        child = self._child
        return child is None or bool(select.select([child.exit_fd], [], [], 0)[0])

    def _start(self) -> None:
        cells, self._cells = os.pipe()
        self._answers, answers = os.pipe()
        self._output, output = os.pipe()
        self._memory = memory_file()
        silent = os.open(os.devnull, os.O_RDONLY)
        settings = self._settings
        argv = [*self._argv, str(cells), str(answers), str(self._memory), settings.get("python_dir") or ""]
        try:
            self._child = self._children.start(
                argv, (silent, output, output),
                env=settings["env"], cwd=settings["cwd"], limits=settings["limits"],
                keep=(cells, answers, self._memory),
            )  # fmt: skip
        except OSError:
            for fd in (self._cells, self._answers, self._output, self._memory):
                os.close(fd)
            raise
        finally:
            for fd in (cells, answers, output, silent):
                os.close(fd)
        self._silent = False
        self._answer.clear()
        os.set_blocking(self._cells, False)
        os.set_blocking(self._output, False)

    def interrupt(self) -> None:
        """Stops the cell that runs, if one does."""
        if self.lock.locked():
            os.write(self._waker, b"!")

    def run(self, code: str, *, timeout_s: float, asker: Asker) -> tuple[dict[str, Any], bytes]:
        """One cell. Raises what `asker.begin` raises."""
        began = time.monotonic()
        with self.lock:
            asker.begin()
            capture = Capture(self._settings["output_bytes"])
            capture.add(self._unsaid)
            self._unsaid = b""
            self._look(capture)
            if self._child is None:
                self._start()
            self.cells += 1
            result = self._ask(code, capture, began + timeout_s, asker.hangup)
            output, dropped = capture.result()
            return dict(result, dropped_bytes=dropped, seconds=time.monotonic() - began), output

    def obey(self, order: dict[str, Any], data: bytes = b"", *, hangup: int = -1) -> bytes | None:
        """Has the kernel follow an order of ours, with `lock` held; its answer. None: it could not, or has ended."""
        noticed = Capture(1024)
        self._look(noticed)
        self._unsaid += noticed.result()[0]
        if self._child is None:
            self._start()
        os.ftruncate(self._memory, 0)
        os.lseek(self._memory, 0, os.SEEK_SET)
        while data:
            data = data[os.write(self._memory, data) :]
        result = self._ask(order, Capture(0), time.monotonic() + OBEY_S, hangup)
        if self._child is None or not result["ok"]:
            return None
        given = os.pread(self._memory, os.fstat(self._memory).st_size, 0)
        os.ftruncate(self._memory, 0)
        return given

    def _ask(self, question: Any, capture: Capture, deadline: float, hangup: int) -> dict[str, Any]:
        asked = json.dumps(question).encode()
        return self._follow(LENGTH.pack(len(asked)) + asked, capture, deadline, hangup)

    def _look(self, capture: Capture) -> None:
        """Takes note of what has happened since the last cell."""
        exits = [] if self._child is None else [self._child.exit_fd]
        ready = select.select([self._wake, *exits], [], [], 0)[0]
        if self._wake in ready:
            os.read(self._wake, 65536)
        if self._child is not None and self._child.exit_fd in ready:
            self._died(capture)

    def _follow(self, cell: bytes, capture: Capture, deadline: float, hangup: int) -> dict[str, Any]:
        assert self._child is not None
        step, timed_out, stopping_since, soon = 0, False, 0.0, True
        while True:
            now = time.monotonic()
            if now >= deadline and not step:
                timed_out, stopping_since = True, now
                step = self._stop(0)
            elif step and step < len(CELL_STOP_S) and now >= stopping_since + CELL_STOP_S[step]:
                step = self._stop(step)
            due = deadline if not step else stopping_since + CELL_STOP_S[min(step, len(CELL_STOP_S) - 1)]
            wait_ms = max(0, int((due - now) * 1000) + 1) if step < len(CELL_STOP_S) else 1000
            cell, ready = self._wait(cell, min(SOON_MS, wait_ms) if soon else wait_ms, hangup, output=not soon)
            soon = False
            if (self._wake in ready or hangup in ready) and not step:
                hangup, stopping_since = -1, now
                step = self._stop(0)
            if self._output in ready:
                self._drain(capture, 1)
            if self._answers in ready and self._take_answer():
                answer = self._whole_answer()
                if answer:
                    self._drain(capture, 64)
                    return dict(answer, timed_out=timed_out)
                if answer is None:
                    continue
            if self._child.exit_fd in ready or self._answers in ready:
                self._drain(capture, 64)
                self._child.signal_group(signal.SIGKILL)  # it may have closed its end and live on
                self._died(capture)
                return {"ok": False, "timed_out": timed_out}

    def _take_answer(self) -> bool:
        """False when there will be none."""
        data = os.read(self._answers, 65536)
        self._answer += data
        return bool(data)

    def _whole_answer(self) -> dict[str, Any] | None:
        """None: it has not come whole yet. Empty: it is none, so a cell has written there."""
        if len(self._answer) < LENGTH.size:
            return None
        size = LENGTH.unpack_from(self._answer)[0]
        if len(self._answer) < LENGTH.size + size <= ANSWER_BYTES:
            return None
        with contextlib.suppress(ValueError, KeyError, TypeError, OverflowError, RecursionError):
            answer = json.loads(self._answer[LENGTH.size : LENGTH.size + size])
            del self._answer[: LENGTH.size + size]
            return {"ok": bool(answer["ok"]), "images": [_image(each) for each in list(answer["images"])[:IMAGES]]}
        return {}

    def _wait(self, cell: bytes, timeout_ms: int, hangup: int, *, output: bool) -> tuple[bytes, set[int]]:
        assert self._child is not None
        with contextlib.suppress(OSError):
            while cell:
                cell = cell[os.write(self._cells, cell[:65536]) :]
        poll = select.poll()
        for fd in (self._answers, self._child.exit_fd, self._wake):
            poll.register(fd, select.POLLIN)
        if output and not self._silent:
            poll.register(self._output, select.POLLIN)
        if hangup >= 0:
            poll.register(hangup, select.POLLIN)
        if cell:
            poll.register(self._cells, select.POLLOUT)
        return cell, {fd for fd, _ in poll.poll(timeout_ms)}

    def _drain(self, capture: Capture, reads: int) -> None:
        """Takes what the pipe has: at most `reads` chunks, for others may print without end."""
        with contextlib.suppress(OSError):
            for _ in range(reads):
                data = os.read(self._output, 65536)
                if not data:
                    self._silent = True
                    return
                capture.add(data)

    def _stop(self, step: int) -> int:
        assert self._child is not None
        self._child.signal_group(signal.SIGKILL if step == 2 else signal.SIGINT)
        return step + 1

    def _died(self, capture: Capture) -> None:
        assert self._child is not None
        code = self._children.forget(self._child)
        self._child = None
        for fd in (self._cells, self._answers, self._output, self._memory):
            os.close(fd)
        what = f"was killed by signal {code - 128}" if code > 128 else f"ended with exit code {code}"
        capture.add(b"\n[the kernel %s; the next cell gets a new one: variables are lost]\n" % what.encode())
