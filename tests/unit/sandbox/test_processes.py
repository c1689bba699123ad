"""The table of processes beside processes that end while it is read."""

import os
import subprocess
import sys

from sandbox.server.processes import Proc, Process

ORPHANS = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid, flush=True); input()"


class Ending(Proc):
    """A table in whose reading one process ends once its child has been read."""

    def __init__(self, parent: "subprocess.Popen[str]", child: int) -> None:
        super().__init__()
        self._parent, self._child = parent, child

    def process(self, pid: int) -> Process | None:
        found = super().process(pid)
        if pid == self._child and self._parent.poll() is None:
            self._parent.kill()
            self._parent.wait()
        return found


def test_a_process_whose_parent_ends_during_the_look_is_found_below_the_one_that_gets_it() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", ORPHANS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        below = Ending(parent, child).below((1,))
        assert child in {found.pid for found in below}
    finally:
        os.kill(child, 9)
        parent.stdout.close()
        assert parent.stdin is not None
        parent.stdin.close()
