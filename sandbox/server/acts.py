"""Acts that have a name: each is run once, whoever asks for it and however often.

A worker may die while its agent's command runs, and another one continue with the rollout, which asks for the same act.
One that has ended is answered with its kept result, one that runs is waited for. So an act outlives its connection, and
ends by its own time, or by `stop`.

A name is TURN.CALL/NUMBER. The results of the newest turn are kept, and no others: at most as many as a turn has acts,
each as long as an output may be.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    Reply = tuple[dict[str, Any], bytes]


class Taken(Exception):
    """A newer attempt of the job has the sandbox."""


class Act:
    """One act, from its start on."""

    def __init__(self, operation: str) -> None:
        self.operation = operation
        self.ended = threading.Event()
        self.reply: Reply = ({"fault": "it has not ended"}, b"")


class Acts:
    """The acts of one sandbox, and who may ask for them."""

    def __init__(self) -> None:
        self._boot = os.urandom(8).hex()
        self._lock = threading.Lock()
        self._attempt, self._fence = -1, ""  # the attempt that has the sandbox; none yet: whoever asks
        self._turn = -1
        self._acts: dict[str, Act] = {}  # of that turn

    def fence(self, request: dict[str, Any]) -> Reply:
        """From here on only this attempt acts. What those before it have begun continues."""
        attempt, fence = int(request["attempt"]), str(request["fence"])
        with self._lock:
            if attempt < self._attempt or (attempt == self._attempt and fence != self._fence):
                raise Taken
            self._attempt, self._fence = attempt, fence
            return {"boot": self._boot, "turn": self._turn, "begun": sorted(self._acts)}, b""

    def check(self, request: dict[str, Any]) -> None:
        """Raises `Taken` for an attempt that another one has followed."""
        if self._fence and request.get("fence") != self._fence:
            raise Taken

    def once(self, request: dict[str, Any], run: Callable[[], Reply]) -> Reply:
        """The reply of a named act; `run`, which does not raise, is called where it is new."""
        name = request["act"]
        turn = int(name.partition(".")[0])
        with self._lock:
            self.check(request)
            if turn < self._turn:
                raise ValueError(f"act {name} is over, and its result is no longer kept: turn {self._turn} has begun")
            if turn > self._turn:
                self._turn, self._acts = turn, {}
            act = self._acts.get(name)
            new = act is None
            if act is None:
                act = self._acts[name] = Act(request["op"])
        if new:
            act.reply = run()
            act.ended.set()
        else:
            act.ended.wait()
        return act.reply

    def running(self, name: str) -> str | None:
        """The operation of an act that runs; None for one that does not."""
        with self._lock:
            act = self._acts.get(name)
        return None if act is None or act.ended.is_set() else act.operation
