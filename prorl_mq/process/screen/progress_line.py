"""A line of progress: rewritten on a terminal, repeated now and then elsewhere, and never silent for long."""

import asyncio
import contextlib
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Final, TextIO

from prorl_mq.clock import monotonic
from prorl_mq.process.screen.terminal import control

BEAT_S: Final = 1.0
LINE_S: Final = 2.0  # between lines where nothing can be rewritten
ALIVE_S: Final = 30.0  # between them while nothing changes
WIDTH: Final = 20  # of the bar


class ProgressLine(ABC):
    """Counts of a subclass, as a line of text."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._began = monotonic()
        self._told_at = float("-inf")
        self._told = -1
        self._stream = stream or sys.stderr
        self._rewrites = self._stream.isatty()

    @abstractmethod
    def counts(self) -> tuple[int, int]:
        """The number that has ended, and of how many."""

    @abstractmethod
    def __str__(self) -> str: ...

    def fraction(self) -> float:
        """The part that has ended, from 0 to 1, for the bar."""
        done, wanted = self.counts()
        return done / wanted if wanted else 1.0

    def pace(self) -> list[str]:
        """Rate and time to the end; before anything has ended, the time that has passed."""
        done, wanted = self.counts()
        seconds = max(monotonic() - self._began, 1e-3)
        if not done:
            return [f"{duration(seconds)} so far"]
        left = [f"about {duration((wanted - done) * seconds / done)} to go"] if done < wanted else []
        return [f"{done / seconds:.1f} a second", *left]

    def tell(self, *, last: bool = False) -> None:
        """Shows the state, unless it was shown a moment ago or there is nothing to do."""
        (done, wanted), now = self.counts(), monotonic()
        since = now - self._told_at
        if not wanted:
            return
        if self._rewrites:
            control(self._stream, "\r\x1b[K")
            text = f"{bar(self.fraction())} {self}"[: shutil.get_terminal_size().columns - 1]
            self._stream.write(text + ("\n" if last else ""))
        elif since >= ALIVE_S or (done != self._told and (last or since >= LINE_S)):
            self._stream.write(f"{self}\n")
            self._told_at, self._told = now, done
        self._stream.flush()

    @contextlib.asynccontextmanager
    async def shown(self) -> AsyncIterator[None]:
        """Shows the state at once and every second, also while nothing changes; at the end it is shown once more."""
        beating = asyncio.create_task(self._beat())
        try:
            yield
        except BaseException:
            self._stream.write("\n" if self._rewrites else "")  # what is said next has a line of its own
            raise
        finally:
            beating.cancel()
            await asyncio.wait({beating})
        self.tell(last=True)

    async def _beat(self) -> None:
        while True:
            self.tell()
            await asyncio.sleep(BEAT_S)


def bar(fraction: float) -> str:
    """A part of a whole, as `[####----]`."""
    full = round(WIDTH * min(fraction, 1.0))
    return f"[{'#' * full}{'-' * (WIDTH - full)}]"


def duration(seconds: float) -> str:
    """As `3 min 05 s`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
