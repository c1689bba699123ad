"""Ends the processes that its owner started, if the owner is gone without having done so.

    python -m prorl_mq.process.guard [STATE_DIR]

The owner holds the other end of standard input and writes `+PGID` for every process group that it starts, `-PGID` for
every one that has ended. When the input closes, groups that are left are killed, and the sandboxes below STATE_DIR,
which outlive the worker that made them, are destroyed. Where the kernel ends children with their parent, this catches
what they had started themselves.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable


def remaining(lines: Iterable[str]) -> list[int]:
    """The groups that were started and have not ended, newest first."""
    groups: dict[int, None] = {}
    for line in lines:
        pgid = int(line[1:])
        if line[0] == "+":
            groups[pgid] = None
        else:
            groups.pop(pgid, None)
    return list(reversed(groups))


def main() -> None:
    """Waits for the owner's end."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for pgid in remaining(sys.stdin):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pgid, signal.SIGKILL)
    if len(sys.argv) > 1:
        sweep = [sys.executable, "-m", "sandbox", "sweep", "--state-dir", sys.argv[1]]
        subprocess.run(sweep, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
