"""An event loop whose time is virtual and whose order is a seed's: ready work runs at once, then time jumps.

What arrives in one turn (deliveries and timers) may come in any order; what the program itself made ready stays in the
order that asyncio promises, unless `shuffle_all` asks for schedules that only other loops could give.
"""

import asyncio
import asyncio.base_events
import heapq
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context, ContextVar, copy_context
from itertools import count
from random import Random
from typing import Any, Final

from tests.simulation import thread

TURNS: Final = 3_000_000  # that a history may take
TURN_S: Final = 1e-6  # what one turn takes, so that a loop that never waits comes to an end


class Stuck(Exception):
    """The history cannot end: nothing is left to wait for, or it takes too many turns."""


class Process:
    """One incarnation of a simulated process: all handles that run in its context."""

    def __init__(self, name: str, number: int = 0) -> None:
        self.name = name
        self.number = number
        self.dead = False
        self.frozen = False
        self.restarts = False  # when it has drained
        self.drained = False
        self.held: list[asyncio.Handle] = []  # what became ready while it was frozen; kept for good once it is dead
        self.on_death: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"{self.name}.{self.number}"

    def kill(self) -> None:
        """None of its handles runs any more, and its connections end."""
        self.dead = True
        for told in self.on_death:
            told()

    def thaw(self, loop: "Loop") -> None:
        self.frozen = False
        held, self.held = self.held, []
        loop.resume(held)


PROCESS: ContextVar[Process | None] = ContextVar("simulated process", default=None)


class Ready(asyncio.Handle):
    """A handle without what only debugging needs."""

    __slots__ = ()

    def __init__(self, callback: Any, args: Sequence[Any], loop: "Loop", context: Context | None) -> None:
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None


class Timer(Ready):
    """A handle with its time."""

    __slots__ = ("_when",)
    _when: float

    def when(self) -> float:
        return self._when


class Due(float):
    """A timer's place in the heap: floats are compared in C."""

    __slots__ = ("timer",)
    timer: Timer


class Task(asyncio.Task[Any]):
    """A task that hashes by its number: sets of tasks are iterated in the same order in every history."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], *, loop: "Loop", **options: Any) -> None:
        self.number = next(loop.numbers)
        super().__init__(coroutine, loop=loop, **options)

    def __hash__(self) -> int:
        return self.number


class Future(asyncio.Future[Any]):
    """A future that hashes by its number."""

    number: int

    def __hash__(self) -> int:
        return self.number


class Loop(asyncio.base_events.BaseEventLoop):
    """One history's loop."""

    def __init__(self, random: Random, *, permute: bool = True, shuffle_all: bool = False) -> None:
        super().__init__()
        self.numbers = count()  # of tasks and futures
        self._random = random
        self._permute = permute
        self._shuffle_all = shuffle_all
        self.turns_left = TURNS
        self._now = 0.0
        self._timers: list[Due] = []
        self.graveyard: list[Any] = []
        self.failures: list[str] = []
        self.set_task_factory(_task)
        self.set_exception_handler(self._failed)

    def time(self) -> float:
        return self._now

    @property
    def now_us(self) -> int:
        return int(self._now * 1e6)

    def create_future(self) -> Future:
        future = Future(loop=self)
        future.number = next(self.numbers)
        return future

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        if self._closed:  # type: ignore[attr-defined]
            raise RuntimeError("Event loop is closed")
        handle = Ready(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def call_later(self, delay: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        timer = Timer(callback, args, self, context)
        timer._when = when
        due = Due(when)
        due.timer = timer
        heapq.heappush(self._timers, due)
        return timer

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":  # type: ignore[override]
        return self.create_task(thread.run(func, *args))

    def resume(self, handles: list[asyncio.Handle]) -> None:
        """Makes handles ready that were held."""
        self._ready.extend(handles)  # type: ignore[attr-defined]

    def bury(self) -> None:
        """Keeps what is left unrun, so that no `finally` of a dead process runs when it is collected."""
        self.graveyard += [*self._ready, *(due.timer for due in self._timers)]  # type: ignore[attr-defined]
        self._ready.clear()  # type: ignore[attr-defined]
        self._timers.clear()

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.failures.append(f"{context['message']}: {error!r}")

    def _process_events(self, event_list: Any) -> None:
        """There is no selector."""

    def _write_to_self(self) -> None:
        """There is nothing to wake."""

    def _run_once(self) -> None:
        """One turn: what is due becomes ready, then everything that is ready runs."""
        ready: Any = self._ready  # type: ignore[attr-defined]
        timers = self._timers
        self.turns_left -= 1
        if self.turns_left < 0:
            raise Stuck("the history takes too many turns")
        while timers and timers[0].timer._cancelled:
            heapq.heappop(timers)
        if not ready:
            if not timers:
                raise Stuck("nothing is ready and nothing is awaited")
            self._now = max(self._now, float(timers[0]))
        if timers and timers[0] <= self._now:
            ready.extend(self._due())
        batch = list(ready)
        ready.clear()
        if self._shuffle_all and len(batch) > 1:
            self._random.shuffle(batch)
        for handle in batch:
            self._run(handle)
        self._now += TURN_S

    def _due(self) -> list[asyncio.Handle]:
        timers, due = self._timers, list[asyncio.Handle]()
        while timers and timers[0] <= self._now:
            timer = heapq.heappop(timers).timer
            if not timer._cancelled:
                due.append(timer)
        if self._permute and len(due) > 1:
            self._random.shuffle(due)
        return due

    def _run(self, handle: asyncio.Handle) -> None:
        if handle._cancelled:
            return
        process = handle._context.get(PROCESS)
        if process is not None and (process.dead or process.frozen):
            process.held.append(handle)
            return
        handle._run()


def _task(loop: Loop, coroutine: Coroutine[Any, Any, Any], **options: Any) -> Task:
    return Task(coroutine, loop=loop, **options)
