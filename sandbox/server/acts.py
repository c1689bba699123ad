"""Acts that have a name: each is run once, whoever asks for it and however often.

A worker may die while its agent's command runs, and another one continue with the rollout, which asks for the same act.
One that has ended is answered with its kept result, one that runs is waited for. So an act outlives its connection, and
ends by its own time, or by `stop`, which may come before the act: it has a connection of its own.

An upload cannot outlive its connection. It has its name from the moment in which the file appears.

A name is TURN.CALL/NUMBER. The results of the newest turn are kept, and no others: at most as many as a turn has acts,
each as long as an output may be.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING, Any, Iterator, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    Reply = tuple[dict[str, Any], bytes]

ACTS = frozenset({"bash", "ipython", "edit", "run", "write_file", "upload"})  # that have a name: others may be repeated


class Taken(Exception):
    """A newer attempt of the job has the sandbox."""


class NotQuiet(Exception):
    """Something still runs in the sandbox; the text says what."""


class ActCancelled(Exception):
    """The act was cancelled before it began."""


class Asker(NamedTuple):
    """The side that waits for an act, as its tool sees it."""

    hangup: int  # turns readable when what runs is to stop
    begin: Callable[[], None]  # for the moment before it acts, when it need wait for nothing else; raises both above


class Act:
    """One act, from its start on. `pipe` is for its cancel."""

    def __init__(self, pipe: tuple[int, int]) -> None:
        self.pipe = pipe
        self.began = time.monotonic()
        self.took_s: float | None = None  # None: it runs
        self.stopped = False
        self.ended = threading.Event()
        self.reply: Reply = ({}, b"")

    def begin(self) -> None:
        if self.stopped:
            raise ActCancelled

    @property
    def seconds(self) -> float:
        """Seconds that it has run."""
        return time.monotonic() - self.began if self.took_s is None else self.took_s

    def stop(self) -> None:
        if not self.stopped and not self.ended.is_set():
            self.stopped = True
            os.write(self.pipe[1], b"!")


class Acts:
    """The acts of one sandbox, and who may ask for them."""

    def __init__(self) -> None:
        self._boot = os.urandom(8).hex()
        self._lock = threading.Lock()
        self._attempt, self._fence = -1, ""  # the attempt that has the sandbox; none yet: whoever asks
        self._turn = -1
        self._strayed = False  # something was done that is no call, behind those of that turn
        self._acts: dict[str, Act] = {}  # of that turn
        self._cancelled: set[str] = set()  # before they came; of that turn and later ones
        self._resting = False  # new acts wait
        self._rested = threading.Condition(self._lock)
        self._pipes: list[tuple[int, int]] = []  # of no act now: making one takes as long as a short act's answer

    @property
    def turn(self) -> int:
        """The newest one of which an act was begun; -1: none."""
        return self._turn

    @property
    def strayed(self) -> bool:
        """True once something without a name was done behind the acts of the newest turn: an export, mostly."""
        return self._strayed

    def stray(self, request: dict[str, Any]) -> None:
        """Before a request that may be an act without a name, which waits while none may begin."""
        if request["op"] not in ACTS or "act" in request:
            return
        with self._lock:
            self._rested.wait_for(lambda: not self._resting)
            self._strayed = self._turn >= 0

    def fence(self, request: dict[str, Any]) -> Reply:
        """From here on only this attempt acts. What those before it have begun continues."""
        attempt, fence = int(request["attempt"]), str(request["fence"])
        with self._lock:
            if attempt < self._attempt or (attempt == self._attempt and fence != self._fence):
                raise Taken
            self._attempt, self._fence = attempt, fence
            seconds = sum(act.seconds for act in self._acts.values())
            return {"boot": self._boot, "turn": self._turn, "begun": sorted(self._acts), "seconds": seconds}, b""

    def check(self, request: dict[str, Any]) -> None:
        """Raises `Taken` for an attempt that another one has followed."""
        if self._fence and request.get("fence") != self._fence:
            raise Taken

    def once(self, request: dict[str, Any], run: Callable[[Asker], Reply]) -> Reply:
        """The reply of a named act; `run`, which does not raise, is called where it is new."""
        name = request["act"]
        with self._lock:
            self._rested.wait_for(lambda: not self._resting)
            self.check(request)
            self._reach(name)
            act = self._acts.get(name)
            new = act is None
            if act is None:
                act = self._acts[name] = Act(self._pipes.pop() if self._pipes else os.pipe())
                if name in self._cancelled:
                    act.stop()
        if new:
            act.reply = run(Asker(act.pipe[0], act.begin))
            with self._lock:
                act.took_s = act.seconds
                act.ended.set()
                if act.stopped:
                    os.read(act.pipe[0], 1)
                self._pipes.append(act.pipe)
        else:
            act.ended.wait()
        return act.reply

    @contextlib.contextmanager
    def rest(self, wait_s: float = 0.0) -> Iterator[None]:
        """No named act begins within this. Raises `NotQuiet` while one runs, or it rests for another one so long."""
        with self._lock:
            self._rested.wait_for(lambda: not self._resting, wait_s)
            running = sorted(name for name, act in self._acts.items() if not act.ended.is_set())
            if running or self._resting:
                raise NotQuiet(f"act {running[0]} still runs" if running else "it is being saved or restored")
            self._resting = True
        try:
            yield
        finally:
            with self._lock:
                self._resting = False
                self._rested.notify_all()

    def stop(self, name: str) -> Reply:
        """Ends this act alone, at once if it has begun, and else when it comes."""
        with self._lock:
            act = self._acts.get(name)
            if act is not None:
                act.stop()
            elif _turn(name) >= self._turn:
                self._cancelled.add(name)
        return {}, b""

    def landed(self, request: dict[str, Any]) -> bool:
        """True for a named upload whose file has appeared before."""
        if "act" not in request:
            return False
        with self._lock:
            self._reach(request["act"])
            return request["act"] in self._acts

    def land(self, request: dict[str, Any], put: Callable[[], None]) -> bool:
        """Lets an upload's file appear, if its attempt still has the sandbox. False: one of its name has, meanwhile."""
        with self._lock:
            self._rested.wait_for(lambda: not self._resting)
            self.check(request)
            name = request.get("act")
            if name is not None:
                self._reach(name)
                if name in self._acts:
                    return False
            put()
            if name is not None:
                act = self._acts[name] = Act((-1, -1))
                act.took_s = 0.0
                act.ended.set()
            return True

    def _reach(self, name: str) -> None:
        """The first act of a turn ends what is kept of those before. Raises `ValueError` for an act of these."""
        turn = _turn(name)
        if turn < self._turn:
            raise ValueError(f"act {name} is over, and its result is no longer kept: turn {self._turn} has begun")
        if turn > self._turn:
            self._turn, self._acts, self._strayed = turn, {}, False
            self._cancelled = {each for each in self._cancelled if _turn(each) >= turn}


def _turn(name: str) -> int:
    return int(name.partition(".")[0])
