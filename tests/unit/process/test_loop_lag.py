"""A handler that blocks the event loop is named in the log: every other sign of it says only that nothing is read."""

import asyncio
import logging
import subprocess
import sys
import threading

import pytest
from prometheus_client import CollectorRegistry

from prorl_mq.process import loop_lag
from prorl_mq.process.loop_lag import LoopLag

pytestmark = pytest.mark.anyio


class Heard(logging.Handler):
    """Ends the block once it was said."""

    def __init__(self) -> None:
        super().__init__()
        self.said, self.lines = threading.Event(), list[str]()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        self.said.set()


def a_scorer_that_blocks(until: threading.Event) -> bool:
    return until.wait(60)


async def test_a_blocked_loop_is_said_once_with_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_lag, "BLOCKED_S", 0.001)
    monkeypatch.setattr(loop_lag, "EVERY_S", 3600.0)
    monkeypatch.setattr(loop_lag, "WATCH_S", 0.001)
    heard, lag = Heard(), LoopLag(CollectorRegistry())
    loop_lag.log.addHandler(heard)
    running = asyncio.create_task(lag.run())
    try:
        await asyncio.sleep(0)  # it has begun, and waits for its timer
        lag._due = 1.0
        assert a_scorer_that_blocks(heard.said)
    finally:
        running.cancel()
        await asyncio.wait([running])
        loop_lag.log.removeHandler(heard)
    [line] = heard.lines
    assert "no job of this process advances until this returns" in line
    assert "in a_scorer_that_blocks" in line


BLOCKS = """
import asyncio, logging, time
from prometheus_client import CollectorRegistry
from prorl_mq.process import loop_lag
logging.basicConfig()
loop_lag.EVERY_S = loop_lag.WATCH_S = loop_lag.BLOCKED_S = 0.01
loop_lag.ENDS_S = {ends_s}

async def main():
    asyncio.create_task(loop_lag.LoopLag(CollectorRegistry()).run())
    await asyncio.sleep(0)
    time.sleep({blocked_s})

asyncio.run(main())
"""


@pytest.mark.process
@pytest.mark.parametrize(("ends_s", "blocked_s", "code"), [(0.05, 600, loop_lag.EXIT_CODE), (600, 0.5, 0)])
def test_a_process_whose_loop_stays_blocked_ends_and_one_that_was_blocked_for_a_while_does_not(
    ends_s: float, blocked_s: float, code: int
) -> None:
    program = BLOCKS.format(ends_s=ends_s, blocked_s=blocked_s)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, loop_lag.ENDS.split(" for ")[0] in done.stderr) == (code, True)
    assert ("this process ends" in done.stderr) is bool(code)
