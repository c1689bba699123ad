"""Scope of one job in logs and traces: log lines within it name the job, spans are in its trace."""

from contextlib import AbstractContextManager, nullcontext

from prorl_mq.process import logs
from prorl_mq.process.tracing import Tracing
from prorl_mq.schema.ids import job_parts, public
from prorl_mq.schema.messages import Stage
from workers.stages.work import Work


def entered(work: Work, stage: Stage, worker: str, tracing: Tracing | None) -> AbstractContextManager[None]:
    """For the rest of this task the log is about the job; what is done inside is a span."""
    job, parts = public(work.held.ref), job_parts(work.held.ref)
    logs.about(run=parts.run, group=parts.group, job=job, attempt=work.attempt, stage=stage.value)
    if tracing is None or work.spec.trace is None:
        return nullcontext()
    told = {"prorl.attempt": work.attempt, "prorl.worker": worker}
    if stage is Stage.RUN:
        told["gen_ai.operation.name"] = "invoke_agent"
    return tracing.stage(stage.value, work.spec.trace, job, told)
