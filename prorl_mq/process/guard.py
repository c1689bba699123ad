"""Ends the processes that its owner started, if the owner is gone without having done so.

    python -m prorl_mq.process.guard [STATE_DIR [shared]]

The owner holds the other end of standard input and writes `+PGID` for every process group that it starts, `-PGID` for
every one that has ended. When the input closes, groups that are left are killed, and the sandboxes below STATE_DIR,
which outlive the worker that made them, are destroyed. Of a `shared` STATE_DIR those go that the owner's processes have
made, unless it has written `.`: then others continue with them. Where the kernel ends children with their parent, this
catches what they had started themselves.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from typing import NamedTuple


class ToldGroups(NamedTuple):
    """Groups of an owner at its end. `left`: groups that have not ended, newest first. `started`: all."""

    left: list[int]
    started: list[int]
    farewell: bool


def read(lines: Iterable[str]) -> ToldGroups:
    """Listens until the input closes."""
    left: dict[int, None] = {}
    started: dict[int, None] = {}
    farewell = False
    for line in lines:
        sign, pgid = line[0], line[1:].strip()
        if sign == ".":
            farewell = True
        elif sign == "+":
            left[int(pgid)] = started[int(pgid)] = None
        else:
            left.pop(int(pgid), None)
    return ToldGroups(list(reversed(left)), list(started), farewell)


def main() -> None:
    """Waits for the owner's end."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    told = read(sys.stdin)
    for pgid in told.left:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pgid, signal.SIGKILL)
    state_dir, shared = sys.argv[1:2], sys.argv[2:] == ["shared"]
    if state_dir and not (shared and told.farewell):
        made = ["sandbox.lifetime.sweep", *state_dir, *map(str, told.started)]
        sweep = made if shared else ["sandbox", "sweep", "--state-dir", *state_dir]
        subprocess.run(
            [sys.executable, "-P", "-m", *sweep], check=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )


if __name__ == "__main__":
    main()
