"""Processes that serve together: started together, restarted when they crash, ended together.

One that ends by itself with code 0 has drained (its time is over, or it had nothing to do): the others follow it.
"""

import asyncio
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from prorl_mq.clock import monotonic
from prorl_mq.process.children import Child, Guard, Program
from prorl_mq.process.signals import EndSignals

MISUSED: Final = 2  # a program that was started wrongly will not start better the next time
FIRST_WAIT_S: Final = 1.0
STEADY_S: Final = 60.0
HELPER_GRACE_S: Final = 10.0
CRASHES: Final = 5  # in a row, until the crew gives up


def say(text: str) -> None:
    """To the log. A full disk must not end who writes it."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


class Stopping(EndSignals):
    """End signals that tell whether the crew has been asked to end."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()

    def on_asked(self) -> None:
        self.asked.set()


class Crew:
    """Programs that serve together. `run` returns the exit code of their owner.

    Those `beside` them outlive them and may come and go: another task of the node may have its own. Where this process
    is killed they end, and with them the sandboxes below `state_dir` that they have made.
    """

    def __init__(
        self,
        programs: Sequence[Program],
        *,
        grace_s: float,
        beside: Sequence[Program] = (),
        state_dir: Path | None = None,
    ) -> None:
        self._programs = programs
        self._beside = beside
        self._grace_s = grace_s
        self._state_dir = state_dir

    async def run(self, stopping: Stopping) -> int:
        """Until a signal, until one drains by itself, or until one cannot be kept alive. Where a signal's drain was cut
        short, the code is that of the signal, or 1 in place of 0.
        """
        guard = Guard(self._state_dir, shared=True)
        children = [Child(program, say=say, guard=guard) for program in self._programs]
        helpers = [Child(program, say=say, guard=guard) for program in self._beside]
        keeping = []
        try:
            for child in (*helpers, *children):
                await child.start()
            keeping = [asyncio.create_task(child.keep(), name=child.program.name) for child in helpers]
            minders = [asyncio.create_task(_mind(child), name=child.program.name) for child in children]
            asked = asyncio.create_task(stopping.asked.wait())
            done, _ = await asyncio.wait({asked, *minders}, return_when=asyncio.FIRST_COMPLETED)
            for task in (asked, *minders):
                task.cancel()
            await asyncio.gather(asked, *minders, return_exceptions=True)
            ended = [minder.result() for minder in minders if minder in done]
        finally:
            await asyncio.gather(*(child.stop(self._grace_s) for child in children))
            for keeper in keeping:
                keeper.cancel()
            await asyncio.gather(*keeping, return_exceptions=True)
            await asyncio.gather(*(child.stop(HELPER_GRACE_S) for child in helpers))
            await guard.aclose()
        if ended:
            return max(ended)
        return stopping.exit_code or int(any(child.ended for child in children))


async def _mind(child: Child) -> int:
    """Starts a program again when it crashes; its exit code when it drained, or when it cannot be helped."""
    crashes = 0
    while True:
        began = monotonic()
        code = await child.wait()
        if code in {0, MISUSED}:
            say(f"{child.program.name} ended with code {code}")
            return code
        crashes = 1 if monotonic() - began > STEADY_S else crashes + 1
        if crashes >= CRASHES:
            say(f"{child.obituary()}, the {crashes}th time in a row: all end")
            return 1
        wait_s = FIRST_WAIT_S * 2 ** (crashes - 1)
        say(f"{child.obituary()}; it is restarted in {wait_s:g} s")
        await asyncio.sleep(wait_s)
        await child.start()
