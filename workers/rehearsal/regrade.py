"""Scores what RUN has handed over again, with the EVAL code that is installed now."""

import asyncio
from collections.abc import Sequence

import msgspec

from prorl_mq.schema.codec import decode
from prorl_mq.schema.messages import Limits
from prorl_mq.schema.task_schema import split
from prorl_mq.schema.trajectory import HandedOver
from prorl_mq.service.recorded import RegradeAnswer, RegradeOrder
from workers.handler import Handler, JobView, Ran, Reference
from workers.rehearsal.stages import ROOMY, Rehearsal
from workers.stages.eval import NOTE_CHARS, readable

EVAL_S = Limits().eval_ms / 1000


class Unscorable(Exception):
    """A sample that cannot be scored, or a family whose reference solutions earn the wrong reward here."""


class Regrading:
    """Scores samples of many families, each behind its reference solutions."""

    def __init__(self, rehearsal: Rehearsal) -> None:
        self._rehearsal = rehearsal
        self._faults: dict[int, asyncio.Task[str]] = {}

    async def score(self, handler: Handler, order: RegradeOrder) -> RegradeAnswer:
        """Raises `Unscorable`, and what the family's EVAL raises."""
        if not order.trajectory.artefact:
            raise Unscorable(
                f"{order.task.data_source} scores what RUN hands over, and the sample has none of it: an older release "
                "wrote it, it is larger than 1 MiB, or the agent broke its sandbox twice, which no scorer sees"
            )
        if fault := await self._fault(handler):
            raise Unscorable(fault)
        handed = decode(order.trajectory.artefact, HandedOver)
        opened, sealed = split(handler.schema, order.task)
        ran = Ran(trajectory=order.trajectory, export=handed.export, agent_error=handed.agent_error)
        async with asyncio.timeout(EVAL_S):
            score = await self._rehearsal.scored(handler, _job(order, opened), sealed, ran)
        score = readable(score, order.task.data_source)
        note = (score.note or handed.agent_error or "")[:NOTE_CHARS] or None
        return RegradeAnswer(
            job_id=order.job_id, reward=score.reward, parts=score.parts, note=note, evidence=score.evidence
        )

    async def _fault(self, handler: Handler) -> str:
        """Says why no score of a family may be made here; empty where all references earn what they must."""
        family = id(handler)
        if family not in self._faults:
            self._faults[family] = asyncio.create_task(self._referenced(handler))
        return await self._faults[family]

    async def _referenced(self, handler: Handler) -> str:
        references: Sequence[Reference] = getattr(handler, "references", ())
        source = handler.data_sources[0]
        for each in references:
            job = JobView(
                job_id="reference", task_id="reference", data_source=source, index=0, attempt=0,
                payload=each.payload, sampling=ROOMY, limits=Limits(),
            )  # fmt: skip
            ran = Ran(trajectory=None, export=each.export)
            try:
                async with asyncio.timeout(EVAL_S):
                    earned = (await self._rehearsal.scored(handler, job, each.sealed, ran)).reward
            except Exception as error:
                return f"{source} cannot be scored here: a reference solution raises {type(error).__name__}: {error}"
            if earned != each.reward:
                return f"{source} cannot be scored here: a reference solution earns {earned:g}, not {each.reward:g}"
        return ""


def _job(order: RegradeOrder, payload: dict[str, object]) -> JobView:
    recorded = order.trajectory
    sampling = msgspec.structs.replace(
        ROOMY, temperature=recorded.temperature, top_p=recorded.top_p, top_k=recorded.top_k
    )
    return JobView(
        job_id=order.job_id,
        task_id=order.task.task_id,
        data_source=order.task.data_source,
        index=order.index,
        attempt=0,
        payload=payload,
        sampling=sampling,
        limits=Limits(),
    )
