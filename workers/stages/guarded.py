"""A stage behind the breakers of task families: jobs of one that fails wait, and one of them tries now and then."""

from typing import Final

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


class GuardedStage:
    """A stage; `node` is that of its worker."""

    def __init__(self, stage: StageRunner, name: Stage, store: Store, shared: SharedBreakers, node: str) -> None:
        self._stage = stage
        self._name = name
        self._store = store
        self._shared = shared
        self._node = node

    async def perform(self, work: Work) -> Move:
        before = carried(work)
        avoided = before.avoid == self._node and before.declined < DECLINES and before.sandbox is None
        if avoided and await self._others(work.spec.data_source):
            return _declined(work, before)
        try:
            tried = await self._shared.check(*self._keys(work), later=self._later(work))
        except Postponed as why:
            return await self._uncounted(failures.postponed(work, why))
        move = await self._stage.perform(work)
        shown, move = await self._judged(work, move)
        if tried and not shown:
            await self._shared.put_back([key for key in tried if key == _key(work, self._name)])
        return await self._uncounted(self._noted(before, move))

    async def _uncounted(self, move: Move) -> Move:
        """Takes what is put aside in EVAL out of the count that RUN stops by for all; not where Redis fills up."""
        if not (isinstance(move.item, Fail) and isinstance(move.error, Postponed) and self._name is Stage.EVAL):
            return move
        if (await fitness.memory(self._store)).share > ASIDE_SHARE:
            return move
        return msgspec.structs.replace(move, item=move.item._replace(aside=True))

    def _later(self, work: Work) -> BreakerKey | None:
        """A job whose EVAL would fail does not begin, either: its trajectory would wait there."""
        return _key(work, Stage.EVAL) if self._name is Stage.INIT else None

    def _keys(self, work: Work) -> list[BreakerKey]:
        """A job whose RUN would fail does not begin. What has reached RUN runs: its sandbox is there."""
        return [_key(work, stage) for stage in STOPS[self._name]]

    async def _judged(self, work: Work, move: Move) -> tuple[bool, Move]:
        """Counts what became of the attempt, and whether that shows anything of the family in this stage. While its
        breaker is open, a failure ends no job.
        """
        key, put_aside = _key(work, self._name), isinstance(move.error, Postponed)
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

    def _noted(self, before: Carried, move: Move) -> Move:
        """A failed attempt travels on with its cause and node, and continues on another node where that may help."""
        error = move.error.error if isinstance(move.error, Postponed) else move.error
        if not isinstance(move.item, Fail) or error is None:
            return move
        cause = cause_of(error)
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


def _key(work: Work, stage: Stage) -> BreakerKey:
    return breakers.family(tenant_of(work.held.ref), stage, work.spec.data_source)
