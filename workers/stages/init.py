"""INIT: the handler prepares a job, usually with a sandbox on this node."""

import asyncio
import contextlib

import msgspec

from prorl_mq.clock import monotonic
from prorl_mq.schema.items import Advance
from prorl_mq.schema.timeline import SANDBOX
from prorl_mq.store import jobs
from prorl_mq.store.policy import announced
from prorl_mq.store.store import Store
from sandbox.errors import SandboxBusy
from sandbox.protocol import REMOTE, SandboxHandle, SandboxProvider
from workers.handler import Prepared
from workers.stages import failures, staleness
from workers.stages.contexts import InitContext
from workers.stages.registry import Registry
from workers.stages.stage import Budget, OverBudget, packed, returned
from workers.stages.stage import carried as carried_before
from workers.stages.work import Carried, Move, Work


class InitStage:
    """Makes the sandbox that RUN will use; it belongs to the job from the commit on."""

    def __init__(self, registry: Registry, provider: SandboxProvider | None, store: Store, node: str) -> None:
        self._registry = registry
        self._provider = provider
        self._store = store
        self._node = node

    async def perform(self, work: Work) -> Move:
        started, before = monotonic(), carried_before(work)
        nothing = Carried(failed=before.failed)
        context = InitContext(work, self._provider)
        kept = False
        try:
            async with Budget(work.spec.limits.init_ms):
                await self._check_staleness(work)
                prepared = returned(await self._registry[work.spec.data_source].init(context), Prepared, work)
                if work.spec.sampling.max_turns > 1:  # else there is no second turn before which it could be saved
                    await _mark(context, prepared.sandbox)
            kept = prepared.sandbox is not None
        except OverBudget:
            return failures.timed_out(work, nothing)
        except Exception as error:
            return failures.failed(work, nothing, error)
        finally:
            if not kept and context.sandboxes:
                await asyncio.shield(context.close())
        carried = Carried(
            handler=prepared.carry,
            sandbox=prepared.sandbox,
            seconds={"init": round(monotonic() - started, 6)},
            node=self._node,
            doubt=before.doubt,
            failed=before.failed,
        )
        lane = None if prepared.sandbox is None or prepared.sandbox.kind == REMOTE else self._node
        try:
            carry = packed(carried)
        except (TypeError, msgspec.MsgspecError) as error:
            await context.close()
            return failures.failed(work, nothing, error)
        item = Advance(work.held, lane, carry, detail=_told(prepared.sandbox), family=work.spec.data_source)
        return Move(item=item, undo=context.close)

    async def _check_staleness(self, work: Work) -> None:
        """Raises `TooStale`."""
        if work.spec.max_staleness is None:
            return
        policy = await announced(self._store, work.spec.pool)
        staleness.check_admitted(work.spec, policy, await jobs.admitted_ms(self._store, work.held.ref))


async def _mark(context: InitContext, handle: SandboxHandle | None) -> None:
    """Notes how RUN will find its sandbox: checkpoints have what differs from that."""
    for box in context.sandboxes:
        if box.handle == handle:
            with contextlib.suppress(SandboxBusy):  # what INIT has left running cannot be saved either
                await box.mark()


def _told(sandbox: SandboxHandle | None) -> str:
    """For the time line: where the sandbox is."""
    return f"{SANDBOX}{sandbox.node}/{sandbox.kind}/{sandbox.sandbox_id}" if sandbox else ""
