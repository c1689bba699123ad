"""RQ's record format: ids, keys, hashes and results, as rq 3 reads them. Pure.

Nothing here is pickled: `data` is JSON, which rq reads with its own JSON serializer. rq-dashboard puts descriptions,
errors and names into its pages as they are, so whatever would be markup is written as a look-alike.
"""

import base64
import re
import zlib
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from prorl_mq.dashboard.truth import TaskName
from prorl_mq.dashboard.visits import Status, Visit
from prorl_mq.schema.ids import JobRef, job_parts, public
from prorl_mq.schema.messages import SampleRecord, Stage
from prorl_mq.store.workers import WorkerStatus

Hash = dict[str, str]

QUEUES: Final = "rq:queues"
WORKERS: Final = "rq:workers"
PROJECTOR: Final = "rq:projector"  # ours: what the mirror shows, and how far it is
LIVE: Final = "rq:projector:live"  # ours: ids of records that have not ended
REGISTRIES: Final = {
    Status.STARTED: "wip",
    Status.SCHEDULED: "scheduled",
    Status.FINISHED: "finished",
    Status.FAILED: "failed",
    Status.CANCELED: "canceled",
}
WORKER_TTL_S: Final = 90
_LONGEST_TEXT: Final = 20_000
_ESCAPED: Final = {"_": "_u", ".": "_d", ":": "__"}
_UNESCAPED: Final = {code: sign for sign, code in _ESCAPED.items()}
_LOOK_ALIKES: Final = str.maketrans({"<": "‹", ">": "›", "&": "＆", '"': "”", "`": "‘"})
_json = msgspec.json.Encoder().encode


class About(NamedTuple):
    """Facts of a record beside its times. Empty where they are not known (any more)."""

    task: TaskName = TaskName()
    sample: SampleRecord | None = None  # how the job ended


@lru_cache(maxsize=3 * 16_384)
def record_id(ref: JobRef, stage: Stage) -> str:
    """RQ allows letters, digits, `_` and `-`; a colon would cut the id."""
    return f"{re.sub('[_.:]', lambda sign: _ESCAPED[sign[0]], ref)}-{stage}"


def job_of(record: str) -> tuple[JobRef, Stage]:
    """The inverse of `record_id`. Raises `ValueError`."""
    name, _, stage = record.rpartition("-")
    ref = JobRef(re.sub("_(_|u|d)", lambda code: _UNESCAPED[code[0]], name))
    job_parts(ref)
    if record_id(ref, Stage(stage)) != record:
        raise ValueError(f"{record!r} is no record of ours")
    return ref, Stage(stage)


def job_key(record: str) -> str:
    return f"rq:job:{record}"


def results_key(record: str) -> str:
    return f"rq:results:{record}"


def queue_key(stage: Stage) -> str:
    return f"rq:queue:{stage.value}"


def registry_key(status: Status, stage: Stage) -> str:
    return f"rq:{REGISTRIES[status]}:{stage.value}"


def member(record: str, status: Status) -> str:
    """Name of a record in a registry. RQ's started registry names executions: a job has at most one."""
    return f"{record}:held" if status is Status.STARTED else record


def members(records: Sequence[str], status: Status) -> Sequence[str]:
    """The same for many."""
    return [member(record, status) for record in records] if status is Status.STARTED else records


def job_hash(ref: JobRef, stage: Stage, visit: Visit, described: str) -> Hash:
    """Every field, so that a write leaves nothing of an earlier one; source: `rq.job.Job.restore`."""
    enqueued = utc(visit.enqueued_ms)
    return {
        "data": f'["{stage}",null,["{public(ref)}"],{{}}]',  # ids need no escape
        "status": visit.status,
        "origin": stage,
        "created_at": enqueued,
        "enqueued_at": enqueued,
        "started_at": utc(visit.started_ms),
        "ended_at": utc(visit.ended_ms),
        "description": described,
        "worker_name": _shown(visit.worker),
        "meta": meta(visit),
    }


@lru_cache(maxsize=16_384)
def description(ref: JobRef, task: TaskName) -> str:
    """The same in every stage."""
    parts = job_parts(ref)
    about = f"{task.task_id} ({task.data_source})" if task.task_id else f"group {parts.group}"
    return harmless(f"{about}, sample {parts.sample}, run {parts.run} of {parts.tenant}"[:500])


def meta(visit: Visit) -> str:
    """Known facts about the end of the visit; those of a failed attempt stay until the next one."""
    if not visit.outcome and not visit.error:
        return "{}"
    said = {name: harmless(value) for name, value in (("outcome", visit.outcome), ("error", visit.error)) if value}
    return _json(said).decode()


def result(visit: Visit, about: About) -> Hash | None:
    """Content of a record's result stream: failures, and the end of the whole job."""
    worker = _shown(visit.worker)
    if visit.status is Status.FAILED:
        said = base64.b64encode(zlib.compress(harmless(failure(visit, about)).encode())).decode()
        return {"type": "2", "exc_string": said, "worker_name": worker}
    if visit.status is Status.FINISHED and visit.outcome:
        return {"type": "1", "return_value": base64.b64encode(_json(returned(visit, about))).decode()} | {
            "worker_name": worker
        }
    return None


def failure(visit: Visit, about: About) -> str:
    """The traceback of a handler where there is one, else what is known."""
    error = about.sample.error if about.sample and visit.outcome else None
    if error is None:
        return ": ".join(part for part in (visit.outcome, visit.error) if part) or "failed"
    told = error.traceback or f"{error.type}: {error.message}"
    return f"{visit.outcome}\n{told}"[-_LONGEST_TEXT:]


def returned(visit: Visit, about: About) -> dict[str, Any]:
    """Outcome and reward, and what it took."""
    sample = about.sample
    if sample is None:
        return {"outcome": harmless(visit.outcome)}
    counted = {
        "attempt": sample.attempt,
        "turns": sample.turns,
        "tool_calls": sample.tool_calls,
        "response_tokens": sample.response_tokens,
    }
    return {"outcome": sample.outcome.value, "reward": sample.reward, **counted}


def worker_key(name: str) -> str:
    return f"rq:worker:{harmless(name)}"


def executions_key(worker: str) -> str:
    """Key of the executions that a worker has in hand; we name one of them."""
    return f"{worker}:executions"


def execution_key(record: str) -> str:
    return f"rq:execution:{member(record, Status.STARTED)}"


def execution_hash(record: str, worker: str, now_ms: int) -> Hash:
    """Source: `rq.executions.Execution.restore`."""
    now = f"{now_ms / 1000:.3f}"
    return {"id": "held", "job_id": record, "created_at": now, "last_heartbeat": now, "worker_name": harmless(worker)}


def worker_hash(worker: WorkerStatus, current: str | None, now_ms: int, version: str) -> Hash:
    """Source: `rq.worker.base.BaseWorker.refresh`. Counters are apart. Its own word lags by a heartbeat."""
    return {
        "birth": utc(worker.started_ms),
        "last_heartbeat": utc(now_ms),
        "queues": worker.stage.value,
        "pid": str(worker.pid),
        "hostname": harmless(worker.node),
        "ip_address": harmless(worker.node),
        "version": version,
        "python_version": f"node {harmless(worker.node)}, {worker.busy} of {worker.slots} slots busy",
        "state": "busy" if worker.busy or current else "idle",
    }


def harmless(said: str) -> str:
    """Looks the same and is no markup."""
    return said.translate(_LOOK_ALIKES)


@lru_cache(maxsize=4096)
def _shown(worker: str) -> str:
    """A name that comes again and again."""
    return harmless(worker)


def utc(ms: int) -> str:
    """RQ's form of a time; empty for none."""
    return f"{_second(ms // 1000)}.{ms % 1000:03d}000Z" if ms else ""


@lru_cache(maxsize=4096)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
