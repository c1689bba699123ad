"""Reference solutions: a node that does not score them rightly scores nothing of their family.

A family may bring some, right and wrong ones. They are scored before the first job of the family on this worker, again
before the next one after the node had no time for a job, and again while they fail, at most every `AGAIN_S`.
"""

import asyncio
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from prorl_mq.clock import monotonic
from prorl_mq.schema.faults import Cause
from prorl_mq.schema.messages import Limits
from sandbox.protocol import SandboxProvider
from workers.handler import Handler, NodeCrowded, Reference
from workers.inference.waits import Waits
from workers.postponed import Postponed
from workers.stages.contexts import EvalContext
from workers.stages.work import Work

AGAIN_S = 30.0
LIMITS = Limits()  # not those of the job that happens to be the first


class NodeUnfit(Exception):
    """A node on which a reference solution does not earn what it must: no reward of this family may come from it."""

    retryable = True
    cause = Cause.NODE


class References:
    """The references of each family on this node: whether they earn what they must."""

    def __init__(self, provider: SandboxProvider | None, waits: Waits) -> None:
        self._provider, self._waits = provider, waits
        self._turns = defaultdict[int, asyncio.Lock](asyncio.Lock)
        self._fit = set[int]()
        self._failed = dict[int, tuple[float, str]]()  # when, and what was said

    async def check(self, work: Work, handler: Handler) -> None:
        """Raises `Postponed` by `NodeUnfit`, which costs the job no attempt, and what this node's sandboxes raise."""
        wanted: Sequence[Reference] = getattr(handler, "references", ())
        family = id(handler)
        async with self._turns[family]:
            if not wanted or family in self._fit:
                return
            at, said = self._failed.get(family, (0.0, ""))
            if not said or monotonic() - at > AGAIN_S:
                said = await self._fault(work, handler, wanted)
                self._failed[family] = monotonic(), said
                self._waits.unable(work.spec.data_source, said)
            if said:
                raise Postponed(said, int(AGAIN_S * 1000), NodeUnfit(said), of_node=True)
            self._fit.add(family)

    def doubt(self, handler: Handler) -> None:
        """Has the family's references scored again before its next job: this node had no time for one."""
        self._fit.discard(id(handler))
        self._failed.pop(id(handler), None)

    async def _fault(self, work: Work, handler: Handler, wanted: Sequence[Reference]) -> str:
        for reference in wanted:
            spec = msgspec.structs.replace(work.spec, payload=reference.payload, limits=LIMITS)
            context = EvalContext(
                msgspec.structs.replace(work, spec=spec), self._provider, sealed=reference.sealed,
                export=reference.export, trajectory=None, truncated=False, agent_error=None, repeated=True,
            )  # fmt: skip
            try:
                async with asyncio.timeout(LIMITS.eval_ms / 1000):
                    score = await handler.eval(context)
            except (TimeoutError, NodeCrowded):
                return f"this node scores no {work.spec.data_source}: a reference solution had no end in EVAL's time"
            finally:
                await asyncio.shield(context.close())
            if score.reward != reference.reward:
                earned = f"a reference solution earned {score.reward:g}, not {reference.reward:g} ({score.note})"
                return f"this node scores no {work.spec.data_source}: {earned}"[:400]
        return ""
