"""Commits in batches: what finished while the last call was under way goes into the next one.

An idle worker waits for nothing, a busy one sends up to 64 jobs in one script call.
"""

import asyncio
import logging
from typing import Any, Final

from prorl_mq.errors import RedisUnavailable
from prorl_mq.schema.items import Advance, Fail, Finish, Held
from prorl_mq.store.store import BATCH, Store
from workers.stages.work import Move

log = logging.getLogger("workers.process.commits")

DONE: Final = frozenset({"advanced", "finished", "delayed", "released", "already"})
Waiting = tuple[Move, "asyncio.Future[str]"]


class Commits:
    """The committing loop. A call that fails with an error fails those who wait for it, never the loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: list[Waiting] = []
        self._sent: list[Waiting] = []
        self._some = asyncio.Event()
        self._over = False

    async def commit(self, move: Move) -> str:
        """Redis's answer: one of `DONE`, or the fence's refusal. Raises what the call raised, `CancelledError` when the
        loop has ended.
        """
        if self._over:
            raise asyncio.CancelledError
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting.append((move, answer))
        self._some.set()
        return await answer

    async def run(self) -> None:
        """Commits until it is cancelled; nobody waits for an answer after that."""
        try:
            while True:
                await self._some.wait()
                self._some.clear()
                while self._waiting:
                    self._sent = self._next()
                    await self._send(self._sent)
        finally:
            self._over = True
            for _, answer in (*self._sent, *self._waiting):
                answer.cancel()

    def _next(self) -> list[Waiting]:
        """The first waiting moves that one call can take: of one kind and one stream."""
        kind, lane = _kind(self._waiting[0][0]), _held(self._waiting[0][0]).lane
        batch: list[Waiting] = []
        rest: list[Waiting] = []
        for each in self._waiting:
            fits = len(batch) < BATCH and _kind(each[0]) is kind and _held(each[0]).lane == lane
            (batch if fits else rest).append(each)
        self._waiting = rest
        return batch

    async def _send(self, batch: list[Waiting]) -> None:
        try:
            answers = await self._call([move.item for move, _ in batch])
        except Exception as error:
            if len(batch) == 1 or isinstance(error, RedisUnavailable):
                _fail(batch, error)
                return
            log.warning("a commit of %d jobs failed, each is sent by itself: %s", len(batch), error)
            for each in batch:
                await self._send([each])
            return
        for (_, answer), said in zip(batch, answers, strict=True):
            if not answer.done():
                answer.set_result(said)

    async def _call(self, items: list[Any]) -> list[str]:
        match items[0]:
            case Advance():
                return await self._store.advance(items)
            case Finish():
                return await self._store.finish(items)
            case _:
                return await self._store.fail(items)


def _fail(batch: list[Waiting], error: Exception) -> None:
    for _, answer in batch:
        if not answer.done():
            answer.set_exception(error)


def _kind(move: Move) -> type[Advance | Finish | Fail]:
    return type(move.item)


def _held(move: Move) -> Held:
    return move.item.held
