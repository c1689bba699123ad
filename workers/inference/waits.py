"""The infrastructure that this process's attempts wait for now, for `prorl-mq status` and the log."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from prorl_mq.clock import monotonic
from prorl_mq.schema.codec import sendable

MAX_CHARS: Final = 500
LOG_EVERY_S: Final = 60.0
log = logging.getLogger("workers.inference.waits")


class Waits:
    """Reasons, each with the number of attempts. Changed by the event loop, read by the heartbeat's thread."""

    def __init__(self) -> None:
        self.changed: Callable[[], None] = lambda: None
        self._counts: Counter[str] = Counter()
        self._logged: dict[str, float] = {}  # when, by reason
        self._unable: dict[str, str] = {}  # what this process does not do, and why

    @contextmanager
    def noted(self, reason: str) -> Iterator[None]:
        """The caller waits for this. The first one to do so writes a log line, once a minute at most."""
        self._counts[reason] += 1
        if self._counts[reason] == 1:
            self._log(reason)
            self.changed()
        try:
            yield
        finally:
            self._counts[reason] -= 1
            if not self._counts[reason]:
                del self._counts[reason]
                self.changed()

    @contextmanager
    def noted_after(self, seconds: float, reason: str) -> Iterator[None]:
        """The same, once the caller has waited for so long: most answers come sooner, and are nothing to tell."""
        with ExitStack() as stack:
            timer = asyncio.get_running_loop().call_later(seconds, lambda: stack.enter_context(self.noted(reason)))
            try:
                yield
            finally:
                timer.cancel()

    def unable(self, what: str, why: str) -> None:
        """Notes why this process does not do something; an empty reason: it does again."""
        before = self._unable.pop(what, "")
        if why:
            self._unable[what] = why
            self._log(why)
        if before != why:
            self.changed()

    @property
    def text(self) -> str:
        """All reasons in one line; empty where nothing is waited for."""
        counts = sorted(self._counts.copy().items(), key=lambda each: -each[1])
        waits = [f"{reason} ({_jobs(count)})" for reason, count in counts]
        return sendable("; ".join([*self._unable.copy().values(), *waits]))[:MAX_CHARS]

    def _log(self, reason: str) -> None:
        now = monotonic()
        self._logged = {each: at for each, at in self._logged.items() if now - at < LOG_EVERY_S}
        if reason not in self._logged:
            self._logged[reason] = now
            log.warning("waits: %s", reason)


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"
