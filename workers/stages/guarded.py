"""A stage behind the breakers of task families: jobs of one that fails wait, and one of them tries now and then."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from prorl_mq.rules.memory import ASIDE_SHARE
from prorl_mq.schema.codec import decode
from prorl_mq.schema.faults import Cause, cause_of
from prorl_mq.schema.ids import tenant_of
from prorl_mq.schema.items import Advance, Fail, Finish, Lane
from prorl_mq.schema.lifecycle import COUNTS
from prorl_mq.schema.messages import FailedAttempt, Stage
from prorl_mq.store import breakers, families
from prorl_mq.store.breakers import BreakerKey
from prorl_mq.store.server import fitness
from prorl_mq.store.store import Store
from sandbox.errors import ImageUnavailable
from workers.handler import SandboxLost
from workers.postponed import Postponed, SharedBreakers, counts, postponed, told
from workers.stages import failures
from workers.stages.stage import StageRunner, carried, packed
from workers.stages.work import Carried, Move, Work

STOPS: Final = {Stage.INIT: (Stage.INIT, Stage.RUN), Stage.RUN: (), Stage.EVAL: (Stage.EVAL,)}  # a job, by breakers of
ELSEWHERE_MS: Final = 200
DECLINES: Final = 5  # times that a node leaves a job that failed on it to others
KEPT: Final = 32  # failed attempts that travel with a job
ERROR_CHARS: Final = 500
KNOWN: Final = 1_024  # tenants' task families
AVOID: Final = b"avoid"  # as `Carried` is packed


class _Keys(NamedTuple):
    """The breakers of a job: its family's in this stage, those that it asks, and that of a stage to come."""

    own: BreakerKey
    asked: Sequence[BreakerKey]
    later: BreakerKey | None


class GuardedStage:
    """A stage; `node` is that of its worker."""

    def __init__(self, stage: StageRunner, name: Stage, store: Store, shared: SharedBreakers, node: str) -> None:
        self._stage = stage
        self._name = name
        self._store = store
        self._shared = shared
        self._node = node
        self._keys = lru_cache(KNOWN)(self._made_keys)

    async def perform(self, work: Work) -> Move:
        if AVOID in work.claim.carry:  # else there is no need to read it
            before = carried(work)
            avoided = before.avoid == self._node and before.declined < DECLINES and before.sandbox is None
            if avoided and await self._others(work.spec.data_source):
                return _declined(work, before)
        own, asked, later = self._keys(tenant_of(work.held.ref), work.spec.data_source)
        try:
            tried = await self._shared.check(*asked, later=later)
        except Postponed as why:
            return await self._uncounted(failures.postponed(work, why))
        move = await self._stage.perform(work)
        shown, move = await self._judged(work, own, move)
        if tried and not shown:
            await self._shared.put_back([key for key in tried if key == own])
        return await self._uncounted(self._noted(work, move)) if isinstance(move.item, Fail) else move

    async def _uncounted(self, move: Move) -> Move:
        """Takes what is put aside in EVAL out of the count that RUN stops by for all; not where Redis fills up."""
        if not (isinstance(move.item, Fail) and isinstance(move.error, Postponed) and self._name is Stage.EVAL):
            return move
        if (await fitness.memory(self._store)).share > ASIDE_SHARE:
            return move
        return msgspec.structs.replace(move, item=move.item._replace(aside=True))

    def _made_keys(self, tenant: str, family: str) -> _Keys:
        """A job whose RUN would fail does not begin. What has reached RUN runs: its sandbox is there."""
        asked = [breakers.family(tenant, stage, family) for stage in STOPS[self._name]]
        return _Keys(breakers.family(tenant, self._name, family), asked, self._later(tenant, family))

    def _later(self, tenant: str, family: str) -> BreakerKey | None:
        """A job whose EVAL would fail does not begin, either: its trajectory would wait there."""
        return breakers.family(tenant, Stage.EVAL, family) if self._name is Stage.INIT else None

    async def _judged(self, work: Work, key: BreakerKey, move: Move) -> tuple[bool, Move]:
        """Counts what became of the attempt, and whether that shows anything of the family in this stage. While its
        breaker is open, a failure ends no job.
        """
        put_aside = isinstance(move.error, Postponed)
        if move.error is None:
            worked = isinstance(move.item, Advance) or (isinstance(move.item, Finish) and move.item.outcome in COUNTS)
            if worked:
                await self._shared.succeeded(key)
            return worked, move
        error = _blamed(move.error, in_init=self._name is Stage.INIT)
        if error is None:
            return False, move
        seen = await self._shared.failed(key, error)
        if put_aside or not seen.open:
            return True, move
        later = failures.postponed(work, postponed(seen, error))
        forgets = isinstance(move.item, Fail) and move.item.forgets
        return True, failures.forgetting(later) if forgets else later

    def _noted(self, work: Work, move: Move) -> Move:
        """A failed attempt travels on with its cause and node, and continues on another node where that may help."""
        error = move.error.error if isinstance(move.error, Postponed) else move.error
        if not isinstance(move.item, Fail) or error is None:
            return move
        cause, before = cause_of(error), carried(work)
        if move.item.carry:
            before = msgspec.structs.replace(decode(move.item.carry, Carried), failed=before.failed)
        made = FailedAttempt(stage=self._name, cause=cause, node=self._node, error=told(error)[:ERROR_CHARS])
        avoid = self._node if cause in {Cause.SANDBOX, Cause.NODE} else None
        after = msgspec.structs.replace(before, failed=(*before.failed, made)[-KEPT:], avoid=avoid, declined=0)
        return msgspec.structs.replace(move, item=move.item._replace(carry=packed(after)))

    async def _others(self, family: str) -> bool:
        """True if a worker of another node takes jobs of this stage and family."""
        able = await families.abilities(self._store)
        readers = able.readers(Lane(self._name))
        return any(each.node != self._node and able.has(each, family) for each in readers)


def _blamed(error: BaseException, *, in_init: bool) -> BaseException | None:
    """The failure that counts against the task family; None for one that the node, the agent, a backend
    or an image explains.
    """
    if isinstance(error, Postponed):
        return None if error.of_node else error.error
    return error if counts(error, in_init=in_init) and not isinstance(error, SandboxLost | ImageUnavailable) else None


def _declined(work: Work, before: Carried) -> Move:
    carry = packed(msgspec.structs.replace(before, declined=before.declined + 1))
    why = f"left to another node: its last attempt failed on {before.avoid}"
    return Move(item=Fail(work.held, work.held.stage, ELSEWHERE_MS, why, counts=False, carry=carry))
