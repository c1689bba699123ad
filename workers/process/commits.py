"""Commits in batches: what finished while the last call was under way goes into the next one.

An idle worker waits for nothing, a busy one sends up to 64 jobs in one script call.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from prorl_mq.schema.items import Advance, Fail, Finish, Held
from prorl_mq.store.store import BATCH, Store
from workers.process.slots import Slot, Slots
from workers.stages.work import Move

log = logging.getLogger("workers.process.commits")

DONE = frozenset({"advanced", "finished", "delayed", "released", "already"})


class Commits:
    """The committing loop. `refused` is told of each commit that the fence refused, with its reason."""

    def __init__(self, store: Store, slots: Slots, refused: Callable[[Slot, Move, str], Awaitable[None]]) -> None:
        self._store = store
        self._slots = slots
        self._refused = refused
        self._waiting: list[tuple[Slot, Move]] = []
        self._some = asyncio.Event()

    def put(self, slot: Slot, move: Move) -> None:
        self._waiting.append((slot, move))
        self._some.set()

    async def run(self) -> None:
        """Commits for ever."""
        while True:
            await self._some.wait()
            self._some.clear()
            while self._waiting:
                await self._send(self._next())

    def _next(self) -> list[tuple[Slot, Move]]:
        """The first waiting moves that one call can take: of one kind and one stream."""
        kind, node = _kind(self._waiting[0][1]), _held(self._waiting[0][1]).node
        batch: list[tuple[Slot, Move]] = []
        rest: list[tuple[Slot, Move]] = []
        for each in self._waiting:
            fits = len(batch) < BATCH and _kind(each[1]) is kind and _held(each[1]).node == node
            (batch if fits else rest).append(each)
        self._waiting = rest
        return batch

    async def _send(self, batch: list[tuple[Slot, Move]]) -> None:
        items: list[Any] = [move.item for _, move in batch]
        match items[0]:
            case Advance():
                answers = await self._store.advance(items)
            case Finish():
                answers = await self._store.finish(items)
            case _:
                answers = await self._store.fail(items)
        for (slot, move), answer in zip(batch, answers, strict=True):
            if answer in DONE:
                self._slots.give(slot)
            else:
                log.warning("commit refused job=%s answer=%s", slot.work.held.ref, answer)
                await self._refused(slot, move, answer)


def _kind(move: Move) -> type[Advance | Finish | Fail]:
    return type(move.item)


def _held(move: Move) -> Held:
    return move.item.held
