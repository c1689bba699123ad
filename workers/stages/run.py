"""RUN: the agent acts in the job's sandbox and talks to the policy; its trajectory passes to EVAL."""

import asyncio
import os
from functools import partial

import msgspec

from prorl_mq.clock import monotonic
from prorl_mq.schema.codec import encode, pack_trajectory, sendable
from prorl_mq.schema.faults import Cause, cause_of
from prorl_mq.schema.ids import group_of, public
from prorl_mq.schema.items import Advance
from prorl_mq.schema.trajectory import HandedOver, Trajectory
from prorl_mq.schema.turns import Inherited
from prorl_mq.store import jobs
from prorl_mq.store.payloads import images
from prorl_mq.store.payloads import writing as payloads
from prorl_mq.store.payloads.checkpoints import CheckpointArchives
from prorl_mq.store.payloads.limits import SMALL_BYTES
from prorl_mq.store.payloads.reading import in_thread
from prorl_mq.store.payloads.writing import PayloadKind
from prorl_mq.store.policy import announced
from prorl_mq.store.store import Store
from sandbox.errors import LinkCut, SandboxError, SandboxOverrun, SandboxUnavailable
from sandbox.isolators.layers.copying import Copies
from sandbox.protocol import Sandbox, SandboxHandle, SandboxProvider
from workers import metrics
from workers.agent.loading import load_ahead, names_models
from workers.agent.pictures import messages as shown
from workers.egress.opening import way_out
from workers.handler import Handler, Ran, SandboxLost, lost_with_egress, with_egress
from workers.inference.pictures import check_shown
from workers.inference.routes import RoutesNeedFiles, check_kept
from workers.inference.run_clock import RunClock, Stalled
from workers.stages import failures
from workers.stages.contexts import MakePolicy, Models, RunContext
from workers.stages.copied import copied
from workers.stages.job_log import JobLog, Send
from workers.stages.registry import Registry
from workers.stages.stage import OverBudget, carried, packed, returned, with_seconds
from workers.stages.staleness import versions_of
from workers.stages.work import Carried, Move, Work

GRACE_S = 2.0  # for a handler that ends at its deadline to hand its trajectory over
EXPORT_BYTES = 16 << 20
ARTEFACT_BYTES = 1 << 20  # of an export, that its trajectory keeps
MARGIN, MARGIN_S = 1 / 10, 5.0  # of RUN's budget, that a handler may keep to hand over what there is


class TurnsLost(Exception):
    """The turns that a forked job begins with are gone."""

    retryable = False
    cause = Cause.WORKER


class RunStage:
    """Drives the handler's agent. Time out is `truncated`, with the trajectory that the handler still returns."""

    def __init__(
        self,
        registry: Registry,
        provider: SandboxProvider | None,
        store: Store,
        policy: MakePolicy,
        node: str,
        logs: Send | None = None,
        copies: Copies | None = None,
        models: Models | None = None,
    ) -> None:
        self._registry = registry
        self._provider = provider
        self._store = store
        self._policy = policy
        self._node = node
        self._logs = logs
        self._archives = CheckpointArchives(store)
        self._copies, self._models = copies, models
        self._loads = names_models(os.environ)

    async def perform(self, work: Work) -> Move:
        before = carried(work)
        started = monotonic()
        box: Sandbox | None = None
        log: JobLog | None = None
        over: JobLog | None = None  # the same, where the commit ends it
        try:
            await self._check_room(work)
            await self._show(work)
            log = await self._log(work)
            if work.spec.max_staleness is not None:
                policy = await announced(self._store, work.spec.pool)
                version = policy.version if log is None else log.begin(policy.version)
                before = msgspec.structs.replace(before, announced=version)
            box = await self._attach(work, before, log)
            if self._loads:  # seconds in a new process, and no time of the policy's
                await load_ahead(work.spec.pool)
            ran, cut = await self._run(work, before, box, log)
            after = with_seconds(_summary(before, ran, cut=cut), "run", monotonic() - started, node=self._node)
            metrics.broken(after.forks, after.prefix_breaks)
            move = await self._advance(work, after, ran.trajectory)
        except OverBudget:
            return failures.timed_out(work, before)
        except SandboxLost as lost:
            return await self._lost(work, before, lost)
        except Exception as error:
            move = failures.failed(work, before, error)
            return failures.forgetting(move) if _forgets(log, error) else move
        else:
            over = log
            return move
        finally:
            work.left.unseat()
            work.left.continues = self._continues(work, log)
            if log is not None and log.saving:
                await asyncio.shield(log.close())
            if before.sandbox is not None:
                destroy = partial(self._destroy, before.sandbox, box, over)
                if work.left.continues:  # a later attempt may have it, or need it until the commit
                    work.left.destroy = destroy
                else:
                    await asyncio.shield(destroy())

    async def _check_room(self, work: Work) -> None:
        """Raises `RoutesNeedFiles`, before anything is sampled."""
        if work.spec.sampling.routed_experts is None:
            return
        files = self._store.payloads
        if work.spec.direct:
            raise RoutesNeedFiles("its trainer reads Redis alone, which takes no routed experts: submit over HTTP")
        if files is None or not await in_thread(lambda: files.there):
            told = files.directory if files is not None else "`payloads` beside the rendezvous file"
            raise RoutesNeedFiles(f"routed experts are megabytes a sample and need files: make the directory {told}")

    async def _show(self, work: Work) -> None:
        """Reads the task's images, for whoever asks the policy in this task. Raises `PayloadUnavailable`."""
        found = images.names(work.spec.payload)
        if found:
            read = {each: await images.image(self._store, work.held.ref, each) for each in dict.fromkeys(found)}
            shown.enter([read[each] for each in found])

    def _continues(self, work: Work, log: JobLog | None) -> bool:
        """True if a later attempt may continue with this one's turns, or with those of an attempt before."""
        return log.continues if log is not None else self._logs is not None and _has_past(work)

    async def _log(self, work: Work) -> JobLog | None:
        """The log of the job's turns, with those of the attempts before; None for a worker without logs."""
        if self._logs is None:
            return None
        records: list[bytes] = []
        if _has_past(work):
            await work.hold()
            records = await jobs.log(self._store, work.held.ref)
        log = JobLog(work, self._logs, records, self._archives, await self._inherited(work))
        log.volatile = getattr(self._registry[work.spec.data_source], "volatile", ())
        if records:
            metrics.continued(log.turn + 1)
        return log

    async def _inherited(self, work: Work) -> Inherited | None:
        """The turns that a forked job begins with. Raises `TurnsLost`."""
        fork = work.spec.fork
        if fork is None:
            return None
        await work.hold()
        found = await self._store.inherited(group_of(work.held.ref))
        if found is None:
            raise TurnsLost(f"the turns of {fork.job_id} that it begins with are gone")
        return found

    async def _lost(self, work: Work, before: Carried, lost: SandboxLost) -> Move:
        """The node's out-of-memory killer and the agent's own `kill` look alike; so do an agent that makes what is
        exported too large, and a handler that exports too much. Twice in a row, it was the agent.
        """
        if isinstance(lost.__cause__, LinkCut):  # the way to it failed: nothing inside can do that
            return failures.failed(work, before, lost.__cause__)
        overrun = isinstance(lost.__cause__, SandboxOverrun)  # its own limit: that is known to be the agent's doing
        if before.doubt is None and not overrun:
            return failures.doubted(work, lost)
        error = f"{lost}" if overrun else f"two attempts failed: {before.doubt}; then {lost}"
        ran = Ran(trajectory=lost.trajectory, agent_error=error[:1000])
        after = msgspec.structs.replace(_summary(before, ran, cut=False), node=self._node, forfeit=True)
        return await self._advance(work, after, lost.trajectory)

    async def _attach(self, work: Work, before: Carried, log: JobLog | None) -> Sandbox | None:
        if before.sandbox is None:
            return None
        await work.hold()
        if self._provider is None:
            raise SandboxUnavailable("the job has a sandbox and this worker has no provider: start it with --sandbox")
        box = await self._provider.attach(before.sandbox)
        if log is not None:
            work.left.detach = box.detach
            # Also where Redis has lost the log, and that there was an attempt: the sandbox knows.
            await log.enter(box)
            metrics.rebuilt.inc(log.rebuilds)
            if await self._copied(work, box, log):
                return box
            if log.rebuilds and log.checkpoint is not None:
                found = await jobs.saved(self._store, work.held.ref)
                if log.inherited and not found[0]:
                    found = await self._store.lent(group_of(work.held.ref))
                await log.restore(*found)
                metrics.restored.inc(log.restored >= 0)
        return box

    async def _copied(self, work: Work, box: Sandbox, log: JobLog) -> bool:
        """True where a fork's first attempt has begun in a copy of its parent's sandbox."""
        base = log.base
        if base is None or not base.sandbox or self._copies is None or _has_past(work):
            return False
        return await copied(self._copies, log, base, box)

    async def _run(self, work: Work, before: Carried, box: Sandbox | None, log: JobLog | None) -> tuple[Ran, bool]:
        """The handler's answer, and whether the budget had to cut it off. Raises `OverBudget` where it was used up
        before the policy spoke: nothing of that was its time.
        """
        clock = RunClock(work.spec.limits.run_ms / 1000)
        context = RunContext(work, before.handler, box, self._policy, clock, log, self._models)
        limit: asyncio.Timeout | None = None
        try:
            async with (
                way_out(box, public(work.held.ref), work.spec.egress) as ledger,
                clock.limit(-GRACE_S) as limit,
            ):
                with lost_with_egress(ledger.lines):
                    ran = returned(await _acted(self._registry[work.spec.data_source], context), Ran, work)
                _check_time(ran, clock, work.spec.limits.run_ms / 1000)
                if _out_of_time(ran) and not context.has_sampled:
                    raise OverBudget
                return with_egress(ran, ledger.lines()), False
        except TimeoutError:
            if clock.left_s > 0 and not (limit and limit.expired()):
                raise
            if not context.has_sampled:
                raise OverBudget from None
            return Ran(trajectory=None), True

    async def _advance(self, work: Work, after: Carried, trajectory: Trajectory | None) -> Move:
        """Raises for an export above `EXPORT_BYTES`: `SandboxLost` where an agent has acted, else `ValueError`."""
        if trajectory is not None:
            trajectory = msgspec.structs.replace(_with_artefact(trajectory, after), forked_from=work.spec.fork)
        check_kept(work.spec.sampling, trajectory)
        check_shown(shown.of_job(), trajectory)
        data = await pack_trajectory(trajectory) if trajectory is not None else b""
        carry = packed(msgspec.structs.replace(after, trajectory_bytes=len(data)))
        if len(carry) > EXPORT_BYTES:
            told = f"the handler exported {len(carry) >> 20} MiB; {EXPORT_BYTES >> 20} MiB are allowed"
            raise ValueError(told) if trajectory is None else SandboxLost(told, trajectory)
        held, key = work.held, ""
        size, exported = len(data) + len(carry), ""
        if data or len(carry) > SMALL_BYTES:
            await work.hold()
        if len(carry) > SMALL_BYTES:
            exported = await payloads.put_file(self._store, held.ref, encode(after.handler))
            metrics.stored(len(carry), in_file=bool(exported), fault=False)
            if exported:
                lighter = msgspec.structs.replace(after, handler=None, exported=exported, trajectory_bytes=len(data))
                carry = packed(lighter)
        if data:
            direct, kind = work.spec.direct, PayloadKind.TRAJECTORY
            stored = await payloads.put(self._store, held.ref, held.token, kind, data, direct=direct)
            metrics.stored(len(data), in_file=stored.in_file, fault=bool(stored.fault))
            key = stored.name
        family = work.spec.data_source
        return Move(item=Advance(held, None, carry, key, size, family=family, exported=exported))

    async def _destroy(self, handle: SandboxHandle, box: Sandbox | None, over: JobLog | None) -> None:
        if over is not None:
            over.ended()
        if box is not None:
            await box.close()
        elif self._provider is not None:
            await self._provider.destroy(handle)


def _has_past(work: Work) -> bool:
    return bool(work.attempt or work.claim.releases)


def _forgets(log: JobLog | None, error: Exception) -> bool:
    """True if the next attempt is to begin with the first turn: where code of ours or of the family fails before any
    turn, the same turns may fail it without limit. What infrastructure does costs no turns.
    """
    told = getattr(error, "forgets_log", None)
    if isinstance(told, bool):
        return told
    return cause_of(error) is Cause.WORKER and not (log is not None and log.grew)


async def _acted(handler: Handler, context: RunContext) -> Ran:
    """The result of the handler. Raises `SandboxLost` for a sandbox that fails once the policy was heard, wherever."""
    try:
        return await handler.run(context)
    except SandboxError as error:
        if isinstance(error, SandboxLost) or not context.has_sampled:
            raise
        raise SandboxLost(f"{type(error).__name__}: {error}", None) from error


def _out_of_time(ran: Ran) -> bool:
    """True if the agent loop ended by its deadline, and before its first turn."""
    trajectory = ran.trajectory
    return trajectory is not None and trajectory.truncated_by == "time" and not trajectory.turns


def _check_time(ran: Ran, clock: RunClock, budget_s: float) -> None:
    """Raises `Stalled` where a handler with a clock of its own counted time as the policy's that was not."""
    early = clock.left_s - GRACE_S > min(MARGIN_S, budget_s * MARGIN) + 0.5
    if clock.stalled_s and early and ran.trajectory is not None and ran.trajectory.truncated_by == "time":
        raise Stalled(f"its time was over before RUN's was: {clock.stalled_s:.1f} s of it went into waiting")


def _with_artefact(trajectory: Trajectory, after: Carried) -> Trajectory:
    """The trajectory with what EVAL is to score, so that it can be scored again when it is in a file."""
    if after.forfeit:
        return trajectory
    artefact = encode(HandedOver(export=after.handler, agent_error=after.agent_error))
    return msgspec.structs.replace(trajectory, artefact=artefact) if len(artefact) <= ARTEFACT_BYTES else trajectory


def _summary(before: Carried, ran: Ran, *, cut: bool) -> Carried:
    trajectory = ran.trajectory
    agent_error = None if ran.agent_error is None else sendable(ran.agent_error)
    if trajectory is None:
        return msgspec.structs.replace(
            before,
            handler=ran.export,
            sandbox=None,
            agent_error=agent_error,
            truncated_by="time" if cut else None,
            stop_reason="time" if cut else None,
        )
    return msgspec.structs.replace(
        before,
        handler=ran.export,
        sandbox=None,
        agent_error=agent_error,
        truncated_by=trajectory.truncated_by,
        stop_reason=trajectory.stop_reason,
        turns=len(trajectory.turns),
        prompt_tokens=len(trajectory.segments[0].prompt_ids) if trajectory.segments else 0,
        response_tokens=sum(sum(segment.loss_mask) for segment in trajectory.segments),
        tool_calls=sum(len(turn.tool_calls) for turn in trajectory.turns),
        forks=trajectory.forks,
        prefix_breaks=trajectory.breaks,
        tool_failures=trajectory.tool_failures,
        versions=versions_of(trajectory),
    )
