"""Commits in batches: what finished while the last call was under way goes into the next one.

An idle worker waits for nothing, a busy one sends up to 64 jobs in one script call.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from prorl_mq.errors import RedisUnavailable
from prorl_mq.schema.items import Advance, Fail, Finish, Lane, Release
from prorl_mq.store.store import BATCH, Store
from workers.stages.work import Move

log = logging.getLogger("workers.process.commits")

DONE: Final = frozenset({"advanced", "finished", "delayed", "released", "already"})
Answer = str | Exception | None  # one of `DONE`, the fence's refusal, what the call raised; None: it is not sent
Call = tuple[type[Advance | Finish | Fail | Release], Lane]  # it takes decisions of one kind, of jobs of one stream
Waiting = tuple[Move, Callable[[Answer], None], Call]


class Commits:
    """The committing loop. A call that fails with an error fails those who wait for it, never the loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: list[Waiting] = []
        self._sent: list[Waiting] = []
        self._some = asyncio.Event()
        self._over = False

    def send(self, move: Move, answered: Callable[[Answer], None]) -> None:
        """Sends a decision with the next call, unless the loop has ended. `answered` is called once."""
        if self._over:
            answered(None)
            return
        self._waiting.append((move, answered, (type(move.item), move.item.held.lane)))
        self._some.set()

    async def commit(self, move: Move) -> Answer:
        """The answer to one decision. Raises `CancelledError` when the loop has ended."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.send(move, partial(_resolve, answer))
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
            for _, answered, _ in (*self._sent, *self._waiting):
                answered(None)

    def _next(self) -> list[Waiting]:
        """The first waiting moves that one call can take."""
        wanted = self._waiting[0][2]
        batch: list[Waiting] = []
        rest: list[Waiting] = []
        for each in self._waiting:
            (batch if len(batch) < BATCH and each[2] == wanted else rest).append(each)
        self._waiting = rest
        return batch

    async def _send(self, batch: list[Waiting]) -> None:
        try:
            answers = await self._call([move.item for move, _, _ in batch])
        except Exception as error:
            if len(batch) == 1 or isinstance(error, RedisUnavailable):
                while batch:
                    batch.pop()[1](error)
                return
            log.warning("a commit of %d jobs failed, each is sent by itself: %s", len(batch), error)
            while batch:
                await self._send(batch[:1])
                del batch[0]
            return
        for (_, answered, _), said in zip(batch, answers, strict=True):
            answered(said)
        batch.clear()

    async def _call(self, items: list[Any]) -> list[str]:
        match items[0]:
            case Advance():
                return await self._store.advance(items)
            case Finish():
                return await self._store.finish(items)
            case Release():
                return await self._store.release([item.held for item in items])
            case _:
                return await self._store.fail(items)


def _resolve(answer: "asyncio.Future[Answer]", said: Answer) -> None:
    if answer.done():
        return
    if said is None:
        answer.cancel()
    else:
        answer.set_result(said)
