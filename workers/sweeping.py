"""Sandboxes on this node that no job's record owns any more are destroyed.

A sandbox's owner is a job and the token of the attempt that made it. No answer from Redis never means gone.
"""

import asyncio
import logging
from pathlib import Path

from redis.exceptions import RedisError

from prorl_mq.broker import Broker
from prorl_mq.errors import RedisUnavailable
from prorl_mq.ids import JobRef
from prorl_mq.lifecycle import State
from prorl_mq.messages import Stage
from sandbox import label, reaper
from sandbox.errors import SandboxError

log = logging.getLogger("workers.sweeping")

RUN_PURPOSE, EVAL_PURPOSE = "run", "eval"
HELD = frozenset({State.LEASED, State.STOPPING})


def owner(ref: JobRef, token: str, purpose: str) -> str:
    """The label of a sandbox that an attempt makes."""
    return f"{ref} {token} {purpose}"


class Sweeping:
    """Looks once a lease. Every worker of a node does; they find the same and do no harm to each other."""

    def __init__(self, broker: Broker, state_dir: Path, node: str, *, lease_ms: int) -> None:
        self._broker = broker
        self._state_dir = state_dir
        self._node = node
        self._lease_s = lease_ms / 1000

    async def run(self) -> None:
        """Sweeps for ever; a fault of one sweep is logged, and the next one tries again."""
        while True:
            try:
                await self.sweep()
            except (SandboxError, RedisUnavailable, RedisError, OSError) as error:
                log.warning("sweep of %s failed, it is tried again: %s", self._state_dir, error)
            await asyncio.sleep(self._lease_s)

    async def sweep(self) -> list[str]:
        """Ids of the sandboxes destroyed. One made after the look is kept: nobody has asked for its owner yet."""
        found = await asyncio.to_thread(label.labelled, self._state_dir)
        owners = [made.owner for _, made in found if made.node == self._node]
        unowned = {each for each in owners if not await self._owned(each)}
        gone = await reaper.sweep(self._state_dir, lambda each: each not in unowned, node=self._node)
        if gone:
            log.warning("destroyed sandboxes that no job owns: %s", ", ".join(gone))
        return gone

    async def _owned(self, label_text: str) -> bool:
        ref, _, rest = label_text.partition(" ")
        token, _, purpose = rest.partition(" ")
        key = self._broker.keys.job(JobRef(ref))
        state, stage, current, commits = await self._broker.read("HMGET", key, "state", "stage", "token", "commits")
        if state is None or state == State.DONE.encode():
            return False
        working = state.decode() in HELD and current == token.encode()
        if purpose == EVAL_PURPOSE:
            return stage == Stage.EVAL.encode() and working
        if stage == Stage.INIT.encode():
            return working
        # INIT's token was the last to commit: RUN, queued or leased, has not given the sandbox up yet.
        return stage == Stage.RUN.encode() and (commits or b"").split()[-1:] == [token.encode()]
