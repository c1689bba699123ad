"""`prorl-mq demo --dapo`: a DAPO batch on a real model, filled to its target, with its report.

The service's data stays until the report is printed: the same command resumes where a killed one was.
"""

import argparse
import asyncio
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import msgspec

from prorl_mq.cli.demo.command import batch_of, needed, settings_of
from prorl_mq.cli.demo.families import EXAMPLES
from prorl_mq.cli.installing.command import offer_to_install
from prorl_mq.cli.interruption import interruptible
from prorl_mq.cli.local.service import LocalService
from prorl_mq.cli.out_file import OutFile
from prorl_mq.cli.progress import Progress
from prorl_mq.cli.submit import submit_and_collect
from prorl_mq.cli.up import addresses, say
from prorl_mq.client import AsyncClient
from prorl_mq.clock import monotonic
from prorl_mq.errors import ConfigurationError
from prorl_mq.process.screen.tables import table
from prorl_mq.schema.dapo import Dapo, Surplus
from prorl_mq.schema.messages import BatchRequest, Limits, Sampling
from prorl_mq.schema.status import BatchReport

FAULTS = (ConfigurationError,)
TARGET: Final = 4
SECONDS: Final = 1000
SHOWN: Final = (
    "accepted", "filtered_right", "filtered_wrong", "filtered_mixed", "failed", "cancelled", "expired",
)  # fmt: skip


class Written(msgspec.Struct, frozen=True):
    """The part of a line that the check reads."""

    job_id: str
    group_id: str
    verdict: str


async def run(given: argparse.Namespace) -> int:
    await offer_to_install(needed(given), given.state_dir.absolute())
    plain = settings_of(given, "demo-dapo")
    data = plain.state_dir / "redis"
    goes_on = data.exists()
    settings = msgspec.structs.replace(plain, fresh=not goes_on, answers=None)
    batch = dapo_batch_of(given)
    began = monotonic()
    service = LocalService(settings, say)
    with OutFile(given.out, fresh=not goes_on) as out, interruptible(service.kill):
        say("resuming the batch of an interrupted demo" if goes_on else "starting a separate service")
        try:
            await service.start()
            say(f"ready after {monotonic() - began:.1f} s; {TARGET} of {len(batch.groups)} groups are wanted")
            for what, where in addresses(service).items():
                say(f"  {what:<9} {where}")
            report = await fill(service, batch, out)
        except asyncio.CancelledError:
            say("interrupted: run the same command again to resume")
            raise
        finally:
            await service.aclose()
    await asyncio.to_thread(shutil.rmtree, data)
    code = verdict(report, given.out, batch)
    print(f"{monotonic() - began:.1f} s in total", flush=True)
    return code


def dapo_batch_of(given: argparse.Namespace) -> BatchRequest:
    """Sums and products that a small model solves now and then; `ordered`, so that nothing waits for another batch."""
    [plain] = batch_of(given, given.tasks or EXAMPLES / "dapo_tasks.jsonl")
    return msgspec.structs.replace(
        plain,
        run_id="demo-dapo",
        sampling=Sampling(temperature=1.0, seed=1, max_turns=3, max_tokens_per_turn=48, max_tokens=96),
        limits=Limits(init_ms=60 * SECONDS, run_ms=180 * SECONDS, eval_ms=60 * SECONDS, total_ms=1200 * SECONDS),
        dapo=Dapo(target_groups=TARGET, surplus=Surplus.ORDERED),
    )


async def fill(service: LocalService, batch: BatchRequest, out: OutFile) -> BatchReport:
    """Writes every group's samples as it closes; the report comes after the last one."""
    progress = Progress(len(batch.groups), sum(group.n for group in batch.groups))
    async with AsyncClient(service.url, token=service.token) as client:
        async with progress.shown():
            await submit_and_collect(client, [batch], out, lambda closed: progress.add(closed.record))
        return (await client.report(batch.run_id, batch.batch_id)).report


def verdict(report: BatchReport, path: Path, batch: BatchRequest) -> int:
    """Prints the report; 1 unless the target was reached and the file has every sample once."""
    shown = [(name, getattr(report, name)) for name in SHOWN]
    rows = [(name, spent.count, round(spent.seconds, 1), spent.tokens) for name, spent in shown if spent.count]
    print(table(("groups", "count", "worker seconds", "sampled tokens"), rows))
    rate, waste = report.acceptance_rate or 0.0, report.waste_ratio or 0.0
    print(
        f"{report.reason}: {report.accepted.count} of {report.target_groups} groups, {report.drawn} drawn, "
        f"{rate:.0%} of the judged ones accepted, {waste:.0%} of the workers' time wasted, surplus={report.surplus}"
    )
    faults = list(faults_of(path, batch, report))
    for fault in faults:
        print(f"the demo failed: {fault}", file=sys.stderr)
    return 1 if faults else 0


def faults_of(path: Path, batch: BatchRequest, report: BatchReport) -> list[str]:
    """Contradictions of the promises: a full batch, and each sample in the file once."""
    lines = [msgspec.json.decode(line, type=Written) for line in path.read_bytes().splitlines()]
    jobs = Counter(line.job_id for line in lines)
    accepted = {line.group_id for line in lines if line.verdict == "accepted"}
    faults = [f"{job} is in {path} {count} times" for job, count in jobs.items() if count > 1]
    if report.reason != "target":
        faults.append(f"the batch closed {report.reason}: {len(batch.groups)} prompts gave too few mixed groups")
    if len(accepted) != report.accepted.count:
        faults.append(f"{path} has {len(accepted)} accepted groups, the report {report.accepted.count}")
    return faults
