"""Models that RUN and EVAL ask beside the policy, such as a judge: those of any pool, called by token ids.

A job holds one backend at most, its policy's, and in EVAL none. So these calls hold none: each conversation takes the
backend of its pool that has the fewest calls of this process under way, among those that are healthy.
"""

from collections.abc import Set as AbstractSet

import msgspec

from prorl_mq.rules.breaker import BreakerState
from prorl_mq.schema.faults import Cause
from prorl_mq.schema.ids import pool_ref
from prorl_mq.store.pools import BackendInfo, SharedState
from workers.agent.hermes import Message
from workers.agent.loading import pool_renderer
from workers.handler import OtherModel
from workers.inference.assignment import Endpoint, TurnUnderWay
from workers.inference.policy import StickyPolicy
from workers.inference.run_clock import RunClock
from workers.inference.watching import CallWatch
from workers.stages.backends import HeapAssigner, Pools
from workers.stages.work import Work


class ForeignPool(Exception):
    """A rollout is to ask a pool of another tenant, which no worker would let it: its row names that pool."""

    retryable = False
    cause = Cause.ROW


class PoolModels:
    """Implements `workers.stages.contexts.Models`."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self._watch = CallWatch(pools.waits)
        self._conversations = 0

    async def ask(
        self, work: Work, pool: str, question: str, *, max_tokens: int, temperature: float, seed: int | None = None
    ) -> str:
        """The answer of a pool's model to one question, without its thought. Raises as `workers.handler.Eval.ask`."""
        named = full_name(work.spec.pool, pool)
        renderer = await pool_renderer(named)
        completion = await self._of(asking(work, named)).generate(
            renderer.prompt([Message(role="user", content=question)]),
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
            stop_token_ids=renderer.stop_ids,
        )
        return renderer.parse(completion.ids).text

    async def model(self, work: Work, pool: str, clock: RunClock, *, trained: bool) -> OtherModel:
        """The model of a pool of the job's own tenant, for a rollout whose clock stands while no backend is there."""
        named = full_name(work.spec.pool, pool)
        if named.partition(":")[0] != work.spec.pool.partition(":")[0]:
            tenant = work.spec.pool.partition(":")[0]
            raise ForeignPool(
                f"pool {pool!r} is another tenant's: name one of tenant {tenant!r}, whose rollout this is"
            )
        asked = _at(work, named) if trained else asking(work, named)
        return OtherModel(self._of(asked, clock), await pool_renderer(named), trained)

    def _of(self, work: Work, clock: RunClock | None = None) -> StickyPolicy:
        """A policy for one conversation, of the pool of the work: its requests have ids that no other has."""
        self._conversations += 1
        return StickyPolicy(
            job_id=f"{work.held.ref}-m{self._conversations}",
            token=work.held.token,
            assigner=SharedAssigner(self._pools, work),
            clients=self._pools.calls.of(work.spec.pool),
            clock=clock or RunClock(),
            watch=self._watch,
        )


def full_name(policy: str, pool: str) -> str:
    """The pool that a name means for a job whose policy's pool is the first one."""
    return pool if ":" in pool else pool_ref(policy.partition(":")[0], pool)


def asking(work: Work, pool: str) -> Work:
    """The job as it asks another pool: of log-probabilities that nobody trains on, any will do."""
    sampling = msgspec.structs.replace(work.spec.sampling, raw_logprobs=True)
    return _at(msgspec.structs.replace(work, spec=msgspec.structs.replace(work.spec, sampling=sampling)), pool)


def _at(work: Work, pool: str) -> Work:
    return msgspec.structs.replace(work, spec=msgspec.structs.replace(work.spec, pool=pool))


class SharedAssigner(HeapAssigner):
    """Hands out backends without a reservation: nothing is to be given back, whichever way the job ends."""

    async def room(self, backend: Endpoint, turn: TurnUnderWay, patience_s: float) -> Endpoint:
        """At once: it holds no backend, and so no room."""
        del turn, patience_s
        return backend

    async def _ask(self, exclude: AbstractSet[str], to: str) -> BackendInfo | None:
        del to
        view = await self._pools.view(self._pool)
        now_ms = await self._pools.store.now_ms()
        under_way = self._pools.calls.under_way()
        fit = [
            (under_way[address], address, seen.info)
            for address, seen in view.backends.items()
            if seen.info is not None and address not in exclude
            and view.unfit(address) is None and not view.behind(address) and _open(seen, now_ms)
        ]  # fmt: skip
        return min(fit, key=lambda each: each[:2])[2] if fit else None


def _open(seen: SharedState, now_ms: int) -> bool:
    """False for a backend that is leaving, or shut by its breaker."""
    return not seen.draining and seen.breaker.state(now_ms) is not BreakerState.OPEN
