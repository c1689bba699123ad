"""`prorl-mq submit`: tasks from a file to the service, samples from the service to a file.

A group is acknowledged only after its lines are on the disk. The batch's name follows from its content, so that the
same command resumes where an earlier one was interrupted.
"""

import argparse
import asyncio
import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from prorl_mq import local_token
from prorl_mq.cli.interruption import interruptible
from prorl_mq.cli.out_file import OutFile
from prorl_mq.cli.progress import Progress
from prorl_mq.cli.reaching import reach
from prorl_mq.cli.tasks_file import TaskLine, assignments, digest_source, located, read, with_field
from prorl_mq.client import AsyncClient, ClosedGroup
from prorl_mq.errors import ConfigurationError, ServiceError
from prorl_mq.schema.dapo import Dapo
from prorl_mq.schema.messages import BatchRequest, Limits, Sampling, Verdict
from prorl_mq.schema.trajectory import Trajectory

FAULTS = (ConfigurationError,)
PART_BYTES: Final = 8 << 20  # of groups in one batch: half of what the API takes
PART_GROUPS: Final = 10_000
TRAJECTORIES_AT_ONCE: Final = 8

Seen = Callable[[ClosedGroup], None]


async def run(given: argparse.Namespace) -> int:
    lines = read(given.tasks, n=given.n, data_source=given.data_source)
    if given.agent:
        lines = [with_field(line, "agent", given.agent) for line in lines]
    sampling = assignments("--sampling", given.sampling, Sampling)
    limits = assignments("--limits", given.limits, Limits)
    dapo = assignments("--dapo", given.dapo, Dapo) if given.dapo else None
    name = re.sub(r"[^A-Za-z0-9_.\-]", "-", given.run or given.tasks.stem)[:64] or "tasks"
    parts = batches(name, given.batch, lines, sampling, limits, dapo)
    with OutFile(given.out or Path(f"{given.tasks.stem}.out.jsonl")) as out, interruptible(lambda: os._exit(130)):
        async with reach(given) as client:
            try:
                # A link with the token is for a terminal: a log may be read by others. One that was given stays unseen.
                own = sys.stderr.isatty() and given.token is None
                return await _carry_out(client, parts, out, (own and local_token.found(client.url)) or "")
            except ServiceError as error:
                raise ServiceError(located(str(error), given.tasks, lines), status=error.status) from None
            except asyncio.CancelledError:
                print("\nthe service continues; run the same command again to get the rest", file=sys.stderr)
                raise


async def _carry_out(client: AsyncClient, parts: Sequence[BatchRequest], out: OutFile, token: str) -> int:
    names = [(part.run_id, name) for part in parts for name in group_names(part)]
    groups = [group for part in parts for group in part.groups]
    there = {name for run_id, name in names if out.has(run_id, name)}
    if there:
        print(f"{len(there)} of {len(names)} groups are in {out.path} already", file=sys.stderr)
    left = [group.n for group, (_, name) in zip(groups, names, strict=True) if name not in there]
    progress = Progress(len(left), sum(left))

    def seen(closed: ClosedGroup) -> None:
        if closed.record.group_id not in there:
            progress.add(closed.record)

    if left and (page := page_of(client.url, parts, token)):
        print(f"watch it: {page}", file=sys.stderr)
    async with progress.shown():
        await submit_and_collect(client, parts, out, seen)
    for cause, count in progress.causes.most_common():
        print(f"{count} samples failed, {cause}", file=sys.stderr)
    if parts[0].dapo is not None:
        return await _tell_report(client, parts[0], out)
    missing = [name for run_id, name in names if not out.has(run_id, name)]
    if missing:
        print(
            f"{len(missing)} groups are not in {out.path}: their results were acknowledged earlier (the first is "
            f"{missing[0]}): give another --batch to roll them out again",
            file=sys.stderr,
        )
        return 1
    print(f"{len(names)} groups are in {out.path}")
    failed = progress.verdicts[Verdict.FAILED]
    if failed:
        print(f"{failed} of them failed: see the errors of their samples there", file=sys.stderr)
    return 1 if failed else 0


def page_of(url: str, parts: Sequence[BatchRequest], token: str = "") -> str:
    """The address of a batch on the web page, of several that of their run; empty where the way leads past the API."""
    if not url.startswith(("http://", "https://")):
        return ""
    run, batch = parts[0].run_id, parts[0].batch_id
    place = f"batches/{quote(f'{run}:{batch}', safe='')}" if len(parts) == 1 else f"runs/{quote(run, safe='')}"
    entry = f"token={quote(token, safe='')}" if token else ""
    return f"{url.rstrip('/')}/ui/#{entry}/{place}"


async def _tell_report(client: AsyncClient, part: BatchRequest, out: OutFile) -> int:
    """A DAPO batch has a record for each group but for those that it left to the run's next batch."""
    cursor, report = await client.report(part.run_id, part.batch_id)
    await client.ack(part.run_id, [cursor])
    filtered = report.filtered_right.count + report.filtered_wrong.count + report.filtered_mixed.count
    waste = "" if report.waste_ratio is None else f", {report.waste_ratio:.0%} of the workers' time was wasted"
    print(
        f"{report.accepted.count} of {report.target_groups} groups accepted ({report.reason}), {filtered} filtered, "
        f"{report.failed.count} failed, {report.cancelled.count} not needed, {report.carried_out} carried over{waste}; "
        f"see {out.path}"
    )
    return 0 if report.reason == "target" else 1


def batches(
    run_id: str,
    batch: str | None,
    lines: Sequence[TaskLine],
    sampling: Sampling,
    limits: Limits,
    dapo: Dapo | None = None,
) -> list[BatchRequest]:
    """The groups as batches that the API takes, with names that a repeat gets again."""
    content = digest_source(lines) + msgspec.msgpack.encode((sampling, limits, *((dapo,) if dapo else ())))
    name = batch or f"{run_id}-{hashlib.blake2b(content, digest_size=6).hexdigest()}"
    chunks = list(_chunks(lines))
    if dapo is not None and len(chunks) > 1:
        raise ConfigurationError(f"{len(lines)} tasks are too many for one DAPO batch: split the file")
    return [
        BatchRequest(
            run_id=run_id,
            batch_id=name if len(chunks) == 1 else f"{name}.part{number}",
            groups=[line.group for line in chunk],
            sampling=sampling,
            limits=limits,
            dapo=dapo,
        )
        for number, chunk in enumerate(chunks, 1)
    ]


async def submit_and_collect(client: AsyncClient, parts: Sequence[BatchRequest], out: OutFile, seen: Seen) -> None:
    """Submits the batches and writes each group as it closes; `seen` is told of it afterwards."""
    try:
        async with asyncio.TaskGroup() as group:
            for part in parts:
                if await _submitted(client, part, out):
                    group.create_task(collect(client, part, out, seen))
    except ExceptionGroup as group_of_faults:
        raise group_of_faults.exceptions[0] from None


async def _submitted(client: AsyncClient, part: BatchRequest, out: OutFile) -> bool:
    """Submits the batch. False if nothing can come: one in the file, gone from the service, is not started again."""
    if all(out.has(part.run_id, name) for name in group_names(part)):
        try:
            await client.batch(f"{part.run_id}:{part.batch_id}")
        except ServiceError as error:
            if error.status == 404:
                return False
            raise
    else:
        await client.submit(part)
    return True


async def collect(client: AsyncClient, part: BatchRequest, out: OutFile, seen: Seen) -> None:
    """Writes each group of a batch as it closes, then acknowledges it."""
    async for closed in client.groups(part.run_id, part.batch_id):
        trajectories = {} if out.has(part.run_id, closed.record.group_id) else await _trajectories(client, closed)
        out.write(closed.record, trajectories)
        seen(closed)
        await client.ack(part.run_id, [closed.cursor])


async def _trajectories(client: AsyncClient, closed: ClosedGroup) -> dict[str, Trajectory]:
    wanted = [sample.job_id for sample in closed.record.samples if sample.trajectory]
    found: dict[str, Trajectory] = {}
    for start in range(0, len(wanted), TRAJECTORIES_AT_ONCE):
        names = wanted[start : start + TRAJECTORIES_AT_ONCE]
        found |= zip(names, await asyncio.gather(*map(client.trajectory, names)), strict=True)
    return found


def group_names(part: BatchRequest) -> list[str]:
    return [group.group_id or f"{part.batch_id}-{place}" for place, group in enumerate(part.groups)]


def _chunks(lines: Sequence[TaskLine]) -> Iterator[list[TaskLine]]:
    chunk: list[TaskLine] = []
    size = 0
    for line in lines:
        length = len(msgspec.json.encode(line.group))
        if chunk and (size + length > PART_BYTES or len(chunk) == PART_GROUPS):
            yield chunk
            chunk, size = [], 0
        chunk.append(line)
        size += length
    yield chunk
