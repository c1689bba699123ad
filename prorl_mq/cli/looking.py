"""`prorl-mq job`, `cancel`, `pause`, `resume` and `fork`: small answers about the state of the service."""

import argparse
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from prorl_mq.cli.local.place import redis_of
from prorl_mq.cli.reaching import reach
from prorl_mq.client import AsyncClient
from prorl_mq.errors import ConfigurationError
from prorl_mq.process.screen.tables import json_text, table
from prorl_mq.schema.messages import JobStatus
from prorl_mq.schema.status import ForkAnswer, RunStatus
from prorl_mq.schema.timeline import Timeline
from prorl_mq.schema.turns import LoggedCall, LoggedTurn, LoggedTurns
from prorl_mq.store.archive.place import archive_of
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.payloads.place import payloads_of
from prorl_mq.store.server.connection import connect
from prorl_mq.store.store import Store

FAULTS = (ConfigurationError,)


async def run(given: argparse.Namespace) -> int:
    await {"job": _job, "cancel": _cancel, "pause": _pause, "resume": _resume, "fork": _fork}[given.command](given)
    return 0


def run_table(found: Mapping[str, RunStatus]) -> str:
    """Runs under the names that the reader knows them by."""
    head = ("run", "weight", "backlog", "eval", "in flight", "un-acked", "settings", "why it waits")
    rows = [
        (name, run.settings.weight, run.backlog, run.backlog_eval, run.in_flight, run.unacked_groups,
         settings_text(run.settings), run.why)
        for name, run in found.items()
    ]  # fmt: skip
    return table(head, rows) if rows else "no runs"


def settings_text(settings: msgspec.Struct) -> str:
    """The settings that differ from the default, beside the weight."""
    given = {name: value for name, value in msgspec.to_builtins(settings).items() if name != "weight"}
    return ", ".join(f"{name} {value}" for name, value in given.items()) or "-"


def status_text(job: JobStatus) -> str:
    """One line: where it is, and why; then what an ended one rests on: note, evidence, error and traceback."""
    ended = f" as {job.outcome}" if job.outcome else ""
    where = f" in {job.stage}" if job.stage and not job.outcome else ""
    head = f"{job.state}{where}{ended}"
    lines = [f"{job.job_id}: {job.why if job.why.startswith(head) else f'{head}; {job.why}'}"]
    if job.note:
        lines.append(f"note: {job.note}")
    if job.evidence:
        lines.append(f"evidence: {msgspec.json.encode(job.evidence).decode()}")
    if job.error is not None:
        lines.append(f"error in {job.error.stage}, cause {job.error.cause}: {job.error.type}: {job.error.message}")
        lines += (job.error.traceback or "").splitlines()
    return "\n".join(lines)


def timeline_text(found: Timeline) -> str:
    """The status, every state change, and each attempt of a stage."""
    begin_ms = found.submitted_ms or (found.changes[0].ms if found.changes else found.now_ms)
    begin = datetime.fromtimestamp(begin_ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")
    changes = [
        (f"{(each.ms - begin_ms) / 1000:.3f}", each.event, each.stage, each.state.value,
         "" if each.seconds is None else f"{each.seconds:.3f}", each.worker, each.detail)
        for each in found.changes
    ]  # fmt: skip
    attempts = [
        (each.stage, each.number, each.waited_s, each.held_s, each.ended_by or "under way", each.worker,
         each.sandbox or "-", ", ".join(each.backends) or "-")
        for each in found.attempts
    ]  # fmt: skip
    parts = [status_text(found.status), f"submitted {begin}" if found.submitted_ms else f"its time line begins {begin}"]
    if found.cut:
        parts.append("only the newest 64 events are kept")
    parts.append(table(("after s", "event", "stage", "then", "for s", "worker", "detail"), changes))
    head = ("stage", "attempt", "waited s", "held s", "ended by", "worker", "sandbox", "backends")
    return "\n\n".join([*parts, table(head, attempts)] if attempts else parts)


def turns_text(found: Sequence[LoggedTurn]) -> str:
    """A row for each turn."""
    rows = [
        (each.number, each.prompt_tokens, len(each.ids), each.finish_reason, _versions(each), f"{each.llm_seconds:.3f}",
         len(each.calls), f"{sum(call.seconds for call in each.calls):.3f}",
         ", ".join(_ending(call) for call in each.calls) or "-")
        for each in found
    ]  # fmt: skip
    head = ("turn", "prompt", "sampled", "finish", "policy", "llm s", "calls", "calls s", "answers")
    return table(head, rows)


def _versions(turn: LoggedTurn) -> str:
    return ", ".join(dict.fromkeys(version for span in turn.spans for version in span.version or ())) or "-"


def _ending(call: LoggedCall) -> str:
    return "refused" if call.refused else "ok" if call.ok else "failed"


async def turns_so_far(client: AsyncClient, name: str) -> tuple[list[LoggedTurn], LoggedTurns]:
    """The finished turns of a job, all of one rollout, and the page behind the last of them."""
    found: list[LoggedTurn] = []
    rollout = ""
    while True:
        page = await client.turns(name, len(found))
        if rollout and page.rollout not in {"", rollout}:  # the job has begun again
            found, rollout = [], ""
            continue
        rollout = page.rollout or rollout
        found += page.turns
        if not page.turns or page.complete:
            return found, page


async def _turns(client: AsyncClient, name: str) -> str:
    """The turns of a job so far, and why there are none."""
    found, page = await turns_so_far(client, name)
    found += [page.under_way] if page.under_way else []
    return turns_text(found) if found else f"no turns: {page.note}"


async def _job(given: argparse.Namespace) -> None:
    async with reach(given, patience_s=5) as client:
        if given.timeline:
            found = await client.timeline(given.id)
            print(json_text(found) if given.json else f"{timeline_text(found)}\n\n{await _turns(client, given.id)}")
        else:
            status = await client.job(given.id)
            print(json_text(status) if given.json else status_text(status))


async def _cancel(given: argparse.Namespace) -> None:
    async with reach(given, patience_s=30) as client:
        answer = await client.cancel(given.kind, given.id)
    running = f"; workers are stopping {answer.jobs} jobs" if answer.jobs else ""
    print(f"{given.kind} {answer.id}: {answer.state}{running}")


async def _pause(given: argparse.Namespace) -> None:
    async with reach(given, patience_s=30) as client:
        answer = await client.pause(given.kind, given.id, for_s=given.seconds, then=given.then)
    paused = f"; {answer.jobs} jobs are paused" if given.kind == "run" else ""
    running = f"; workers give {answer.pausing} jobs back at their next turn" if answer.pausing else ""
    print(f"{given.kind} {answer.id}: {answer.state}{paused}{running}")


async def _resume(given: argparse.Namespace) -> None:
    async with reach(given, patience_s=30) as client:
        answer = await client.resume(given.kind, given.id)
    print(f"{given.kind} {answer.id}: {answer.state}, {answer.jobs} jobs that were paused")


async def _fork(given: argparse.Namespace) -> None:
    async with reach(given, patience_s=30) as client:
        made = await client.fork(given.id, given.turn, given.samples, group=given.group)
    print(fork_text(made))


def fork_text(made: ForkAnswer) -> str:
    """The new jobs, what they do not sample again, and what their sandboxes begin with."""
    again = " (there was this fork already)" if made.repeated else ""
    sandbox = (
        f"sandboxes begin with the checkpoint behind turn {made.restores}; later calls are made again"
        if made.restores >= 0
        else "all calls are made again, as far as there are any"
    )
    jobs = f"{made.jobs[0]} to {made.jobs[-1]}" if len(made.jobs) > 1 else made.jobs[0]
    return f"{jobs}: turns 0 to {made.turn} of {made.job_id}, {made.shared_tokens} sampled tokens; {sandbox}{again}"


@contextlib.asynccontextmanager
async def service_redis(given: argparse.Namespace) -> AsyncIterator[Store]:
    """The verbs, straight on the Redis that was named, or on that of the service in the state directory."""
    settings = redis_of(given)
    redis = connect(settings)
    try:
        keys, payloads, archive = Keys(settings.namespace), payloads_of(settings), archive_of(settings)
        yield Store(redis, keys, name="prorl-mq", outage_ms=2_000, payloads=payloads, archive=archive)
    finally:
        await redis.aclose()
