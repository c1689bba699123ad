"""EVAL: the handler scores what RUN exported, in a fresh sandbox, with what was sealed until now."""

import asyncio
import math
from collections.abc import ItemsView, Mapping
from typing import Any, Final, SupportsFloat

import msgspec

from prorl_mq.clock import monotonic
from prorl_mq.errors import PayloadUnavailable
from prorl_mq.schema.codec import decode, decode_any, encode_sendable, unpack_trajectory
from prorl_mq.schema.items import Finish
from prorl_mq.schema.messages import Outcome
from prorl_mq.schema.trajectory import Trajectory
from prorl_mq.store.payloads import reading as payloads
from prorl_mq.store.policy import announced
from prorl_mq.store.store import Store
from sandbox.protocol import SandboxProvider
from workers import metrics
from workers.handler import NodeCrowded, Score
from workers.inference.waits import Waits
from workers.stages import failures, staleness
from workers.stages.contexts import EvalContext, Models
from workers.stages.references import References
from workers.stages.registry import Registry
from workers.stages.stage import Budget, OverBudget, carried, returned, with_seconds
from workers.stages.work import Carried, Move, Work

EVIDENCE_BYTES: Final = 256 << 10
NOTE_CHARS: Final = 10_000
NUMBERS: Final = (float, int, SupportsFloat)  # a look for the protocol takes longer than all else here
FORFEIT: Final = Score(reward=0.0)  # of an agent that broke its sandbox twice; the record's note says how


class EvalStage:
    """Scores. A reward comes from here or not at all."""

    def __init__(
        self,
        registry: Registry,
        provider: SandboxProvider | None,
        store: Store,
        waits: Waits | None = None,
        models: Models | None = None,
    ) -> None:
        self._registry = registry
        self._provider = provider
        self._store = store
        self._models = models
        self._references = References(provider, waits or Waits())

    async def perform(self, work: Work) -> Move:
        before = carried(work)
        started = monotonic()
        context: EvalContext | None = None
        try:
            context = await self._context(work, before)
            score = FORFEIT if before.forfeit else await self._score(work, context)
            await self._check_staleness(work, context.trajectory, before.announced)
        except OverBudget:
            return failures.timed_out(work, before)
        except NodeCrowded as error:
            self._references.doubt(self._registry[work.spec.data_source])
            return failures.failed(work, before, error) if before.crowded else failures.crowded(work, before, error)
        except Exception as error:
            return failures.failed(work, before, error)
        finally:
            if context is not None and context.sandboxes:
                await asyncio.shield(context.close())
        metrics.scored(work.spec.data_source, score.reward, before.response_tokens, before.turns)
        return _scored(work, with_seconds(before, "eval", monotonic() - started), score)

    async def _score(self, work: Work, context: EvalContext) -> Score:
        handler = self._registry[work.spec.data_source]
        await self._references.check(work, handler)
        async with Budget(work.spec.limits.eval_ms):
            return readable(returned(await handler.eval(context), Score, work), work.spec.data_source)

    async def _context(self, work: Work, before: Carried) -> EvalContext:
        """The context of EVAL, which alone may see the sealed part and the whole trajectory."""
        name = work.claim.trajectory
        blob = await payloads.get(self._store, work.held.ref, name) if name else None
        return EvalContext(
            work,
            self._provider,
            sealed=decode_any(work.sealed) if work.sealed else {},
            export=await self._export(work, before),
            trajectory=await unpack_trajectory(blob) if blob else None,
            truncated=before.truncated_by is not None,
            agent_error=before.agent_error,
            repeated=before.crowded,
            models=self._models,
        )

    async def _export(self, work: Work, before: Carried) -> Any:
        if not before.exported:
            return before.handler
        data = await payloads.get(self._store, work.held.ref, before.exported)
        if data is None:
            raise PayloadUnavailable(f"{before.exported} is not the name of a file")
        return decode_any(data)

    async def _check_staleness(self, work: Work, trajectory: Trajectory | None, in_run: int | None) -> None:
        """Raises `TooStale`."""
        if work.spec.max_staleness is not None:
            policy = await announced(self._store, work.spec.pool)
            first = staleness.first_version(trajectory, in_run)
            staleness.check(work.spec, policy.version, first, "at its end")


def readable(score: Score, source: str) -> Score:
    """The score as a record takes it. Raises `ValueError` for any other: its group could never be settled."""
    told = f"the handler of {source} gave"
    reward = _number(score.reward, f"{told} the reward")
    if score == Score(reward=score.reward):
        return Score(reward=reward)
    try:
        parts = {name: _number(part, f"{told} the part {name!r}") for name, part in _named(score.parts)}
        return decode(encode_sendable(msgspec.structs.replace(score, reward=reward, parts=parts)), Score)
    except (TypeError, msgspec.MsgspecError) as error:
        raise ValueError(f"{told} a score that no record takes: {error}") from error


def _named(parts: object) -> ItemsView[Any, object]:
    """Raises `TypeError`."""
    if not isinstance(parts, Mapping):
        raise TypeError(f"its parts are {parts!r:.100}, which names no numbers")
    return parts.items()


def _number(value: object, told: str) -> float:
    """Raises `ValueError`. Numbers of numpy are numbers; text is none."""
    try:
        if isinstance(value, NUMBERS) and math.isfinite(number := float(value)):
            return number
    except (ValueError, OverflowError):
        pass
    raise ValueError(f"{told} {value!r:.100}, which is no finite number")


def _kept(score: Score) -> Mapping[str, Any]:
    """Its evidence, or how much that would have been: records stay in Redis until they are read."""
    if not score.evidence:
        return score.evidence
    size = len(encode_sendable(Score(reward=0.0, evidence=score.evidence)))
    return (
        score.evidence if size <= EVIDENCE_BYTES else {"left_out": f"{size >> 10} KiB; {EVIDENCE_BYTES >> 10} are kept"}
    )


def _scored(work: Work, after: Carried, score: Score) -> Move:
    outcome = Outcome.COMPLETED
    if after.agent_error is not None:
        outcome = Outcome.AGENT_ERROR
    elif after.truncated_by is not None:
        outcome = Outcome.TRUNCATED
    note = (score.note or after.agent_error or "")[:NOTE_CHARS] or None
    scored = {"reward": score.reward, "reward_parts": score.parts, "note": note, "evidence": _kept(score)}
    record = work.record(outcome, after, **scored)
    return Move(item=Finish(work.held, outcome, encode_sendable(record)))
