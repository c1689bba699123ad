"""Sandboxes on this node that no job's record owns any more are destroyed.

A sandbox's owner is a job and the token of the attempt that made it. No answer from Redis never means gone.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from prorl_mq.schema.ids import JobRef
from prorl_mq.schema.lifecycle import State
from prorl_mq.schema.messages import Stage
from prorl_mq.store import jobs
from prorl_mq.store.server.faults import FAULTS
from prorl_mq.store.store import Store
from sandbox.errors import SandboxError
from sandbox.keeper import place
from sandbox.lifetime import label
from sandbox.lifetime import sweep as reaper
from sandbox.lifetime.owner import OwnerKind, parse

log = logging.getLogger("workers.node.sweeping")

RUN_PURPOSE, EVAL_PURPOSE = "run", "eval"
HELD = frozenset({State.LEASED, State.STOPPING})


class Attempt(NamedTuple):
    """Label of a job's sandbox: for whom it was made, and which stage is to use it."""

    ref: JobRef
    token: str
    purpose: str

    @property
    def name(self) -> str:
        return " ".join(self)


async def repeat(turn: Callable[[], Awaitable[object]], *, every_s: float, what: str) -> None:
    """Takes turns until it is cancelled; a fault of one is logged, and the next one tries again."""
    while True:
        try:
            await turn()
        except (SandboxError, *FAULTS) as error:
            log.warning("%s failed, it is tried again: %s", what, error)
        await asyncio.sleep(every_s)


class Sweeping:
    """Looks once a lease: the node's keeper, or every worker where there is none. They do no harm to each other."""

    def __init__(self, store: Store, state_dir: Path, node: str) -> None:
        self._store = store
        self._state_dir = state_dir
        self._node = node
        self._service = store.keys.namespace
        self._place = place.place(state_dir, self._service, node)

    async def instead_of_keeper(self) -> None:
        """Sweeps unless a keeper runs. A pool without its keeper has no owner."""
        with place.unkept(self._place) as alone:
            if not alone:
                return
        unowned = await self._unowned()  # not under the lock: Redis may be away for long
        with place.unkept(self._place) as alone:
            if alone:
                await self._destroy(lambda text: text not in unowned and not _is_pool(text))

    async def sweep(self) -> list[str]:
        """Ids of the sandboxes destroyed. One made after the look is kept: nobody has asked for its owner yet."""
        unowned = await self._unowned()
        return await self._destroy(lambda text: text not in unowned)

    async def _destroy(self, keep: Callable[[str], bool]) -> list[str]:
        gone = await reaper.sweep(self._state_dir, keep, node=self._node, ours=self._is_ours)
        if gone:
            log.warning("destroyed sandboxes that nobody owns: %s", ", ".join(gone))
        return gone

    async def _unowned(self) -> set[str]:
        """Owners in labels that Redis says have given up their sandboxes."""
        found = await asyncio.to_thread(label.labelled, self._state_dir)
        texts = {made.owner for _, made in found if made.node == self._node and self._is_ours(made.owner)}
        attempts = {text: attempt for text in texts if (attempt := attempt_in(text)) is not None}
        return {text for text, owned in await self._owned(attempts) if not owned}

    def _is_ours(self, text: str) -> bool:
        parsed = parse(text)
        return parsed is not None and parsed.service == self._service

    async def _owned(self, attempts: dict[str, Attempt]) -> Iterable[tuple[str, bool]]:
        holders = await jobs.holders(self._store, [each.ref for each in attempts.values()])
        return [(text, owns(each, now)) for (text, each), now in zip(attempts.items(), holders, strict=True)]


def owns(attempt: Attempt, now: jobs.Holder | None) -> bool:
    """True if a job's record says that the sandbox of this attempt is still to be used."""
    if now is None or now.state in {State.DONE, State.PAUSED}:
        return False
    working = now.state in HELD and now.token == attempt.token
    if attempt.purpose == EVAL_PURPOSE:
        return now.stage == Stage.EVAL and working
    if now.stage == Stage.INIT:
        return working
    # INIT has made it for RUN, which has not given it up yet, queued or leased, by whatever attempt.
    return now.stage == Stage.RUN and now.made == attempt.token


def attempt_in(text: str) -> Attempt | None:
    """None for what is no job's, or is not written as we write it: nobody can say that this is not needed."""
    parsed = parse(text)
    if parsed is None or parsed.kind is not OwnerKind.JOB:
        return None
    parts = parsed.name.split(" ")
    return Attempt(JobRef(parts[0]), *parts[1:]) if len(parts) == 3 else None


def _is_pool(text: str) -> bool:
    parsed = parse(text)
    return parsed is not None and parsed.kind is OwnerKind.POOL
