"""Has hidden tests run, and tells how each one ended. The text of this file is what runs in the sandbox.

Standard library only. The tests run in another process (`runner.py`): nothing that it prints counts. How a test ended
comes over a pipe of its own, under a nonce. The judge itself cannot be read or traced by that process. Standard output
is one JSON object.
"""

from __future__ import annotations  # Python 3.8 may run this

import contextlib
import glob
import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

PR_SET_DUMPABLE = 4
CANNOT_JUDGE = 3  # exit code: this Python lacks something; the patch is not to blame
KEPT_BYTES = 16 << 10  # of what the tests print
DRAIN_S = 2.0
OF_OURS = ("PYTHONUSERBASE", "PYTHONIOENCODING")  # for what tests start
LOOK_S = 0.5  # at the CPU time that was used


def seal() -> None:
    """From here on no other process of this user may read this one's memory or descriptors."""
    try:
        import ctypes
    except ImportError:
        raise SystemExit(CANNOT_JUDGE) from None
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def environment(given: dict[str, str]) -> dict[str, str]:
    """The variables that the image gives its tests, without what makes Python or pytest load more than they would."""
    kept = {
        name: value
        for name, value in (given or os.environ).items()
        if not name.startswith(("PYTHON", "PYTEST", "COV_")) and name not in {"LD_PRELOAD", "LD_LIBRARY_PATH"}
    }
    return {**kept, **{name: given[name] for name in OF_OURS if name in given}}


def starved() -> float:
    """Seconds for which the thread that waited longest was ready and had no CPU; 0 where the kernel does not count."""
    longest = 0
    for name in glob.iglob("/proc/[0-9]*/task/*/schedstat"):  # noqa: PTH207
        with contextlib.suppress(OSError, ValueError, IndexError), open(name) as file:  # noqa: PTH123
            longest = max(longest, int(file.read().split()[1]))
    return longest / 1e9


def used() -> float:
    """CPU seconds that what runs here has used, with what ended and was waited for."""
    return sum(sum(map(int, fields[11:15])) for fields in told_of_each("stat")) / os.sysconf("SC_CLK_TCK")


def told_of_each(name: str) -> list[list[str]]:
    """Fields of a file of each process, behind its name where the file begins with one."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208
        with contextlib.suppress(OSError), open(f"/proc/{pid}/{name}", errors="replace") as file:  # noqa: PTH123
            fields = file.read().rpartition(")")[2].split()
            if len(fields) > 1:
                found.append(fields)
    return found


class JudgedRun:
    """One run of the tests, from its start to the end of its process."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.nonce = os.urandom(16).hex()
        self.events: list[list[Any]] = []
        self.printed = b""
        self.began, self.used_before = time.monotonic(), used()
        self.wall_s = self.cpu_s = self.starved_s = 0.0
        events, events_in = os.pipe()
        secret, secret_in = os.pipe()
        command = [given["python"], "-I", "-S", "-c", given["runner"], str(events_in), str(secret), given["run"]]
        variables = environment(given["environment"])
        self.process = subprocess.Popen(
            command, cwd=given["cwd"], env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, pass_fds=(events_in, secret), start_new_session=True,
        )  # fmt: skip
        os.close(events_in)
        os.close(secret)
        with os.fdopen(secret_in, "w") as told:
            told.write(self.nonce + "\n")
        self.readers = [
            threading.Thread(target=self.listen, args=(events,), daemon=True),
            threading.Thread(target=self.keep, daemon=True),
        ]
        for reader in self.readers:
            reader.start()

    def listen(self, descriptor: int) -> None:
        with os.fdopen(descriptor, "rb") as lines:
            for line in lines:
                with contextlib.suppress(ValueError):
                    self.events.append(json.loads(line))

    def keep(self) -> None:
        """The last of what the tests print, for people."""
        assert self.process.stdout is not None
        while piece := os.read(self.process.stdout.fileno(), 1 << 16):
            self.printed = (self.printed + piece)[-KEPT_BYTES:]

    def end(self, cpu_s: float, wall_s: float) -> int | None:
        """The exit code; None when the time was over."""
        code: int | None = None
        while code is None and self.has_time(cpu_s, wall_s):
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self.process.wait(min(LOOK_S, max(0.0, self.began + wall_s - time.monotonic())))
        if code is None:
            self.starved_s = starved()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for reader in self.readers:
            reader.join(DRAIN_S)  # a process that left the group may hold the pipes open
        return code

    def has_time(self, cpu_s: float, wall_s: float) -> bool:
        """Looks at the clocks."""
        self.wall_s, self.cpu_s = time.monotonic() - self.began, used() - self.used_before
        return self.wall_s < wall_s and self.cpu_s < cpu_s


def result(given: dict[str, Any]) -> dict[str, Any]:
    """Result of the run. `ended` only if the runner came to its end, and its process told the same exit code."""
    run = JudgedRun(given)
    code = run.end(given["cpu_s"], given["wall_s"])
    events = list(run.events)
    forged = any(not isinstance(event, list) or event[:1] != [run.nonce] for event in events)
    ends = [event[2] for event in events if event[1:2] == ["end"]]
    return {
        "nonce": given["nonce"],
        "statuses": [event[2:5] for event in events if event[1:2] == ["test"]],
        "ended": code is not None and ends == [code] and events[-1][1] == "end",
        "forged": forged,
        "timed_out": code is None,
        "exit_code": code,
        "printed": run.printed.decode("utf-8", "replace"),
        "wall_s": run.wall_s,
        "cpu_s": run.cpu_s,
        "starved_s": run.starved_s,
    }


def main() -> None:
    """Writes the canaries, runs the tests, tells the result."""
    seal()
    given = json.loads(sys.stdin.buffer.readline())
    for path, text in given["canaries"]:
        with open(os.path.join(given["cwd"], path), "a", encoding="utf-8") as file:  # noqa: PTH118, PTH123
            file.write(text)
    print(json.dumps(result(given)))


if __name__ == "__main__":
    main()
