"""Invariants of payloads in files: what a live key names is there, and what nothing names goes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Final, NamedTuple

from prorl_mq.clock import wall_ms
from prorl_mq.schema.ids import tenant_of
from prorl_mq.service.fsck.violations import Violation
from prorl_mq.store.audit.jobs import JobFacts
from prorl_mq.store.audit.reads import Reads
from prorl_mq.store.audit.results import RecordFacts
from prorl_mq.store.payloads import marks
from prorl_mq.store.payloads.files import OldFile, PayloadFiles
from prorl_mq.store.payloads.limits import GRACE_S
from prorl_mq.store.payloads.name import PayloadFile, named_file

NUMBER: Final = 55
LEFT_S: Final = 3 * GRACE_S  # after which a file without a name should have been collected


class NamedPayload(NamedTuple):
    """A file that a key names."""

    key: str
    where: str
    tenant: str
    file: PayloadFile


def of_record(facts: RecordFacts) -> Iterator[NamedPayload]:
    where = f"the record of {facts.record.group_id} at {facts.cursor}"
    return (NamedPayload(facts.key, where, tenant_of(facts.run), file) for file in facts.files)


def of_job(facts: JobFacts) -> Iterator[NamedPayload]:
    """Files of a job that waits for EVAL or is in it, and the checkpoint of one that has a log of turns."""
    at_eval = facts.text("stage") == "eval" and facts.text("state") != "done"
    read = (("trajectory", "the job"), ("exported", "the export of the job")) if at_eval else ()
    for name, said in (*read, ("saved_in", "the checkpoint of the job")):
        file = named_file(facts.text(name))
        if file is not None:
            yield NamedPayload(facts.key, f"{said} {facts.ref}", tenant_of(facts.ref), file)


async def violations(reads: Reads, files: PayloadFiles, named: Iterable[NamedPayload]) -> AsyncIterator[Violation]:
    """Files that are missing or short, and files that have been left."""
    for each in named:
        if fault := await asyncio.to_thread(files.fault, each.tenant, each.file):
            what = f"{each.where} names {files.path(each.tenant, each.file)}: {fault}"
            fix = "mount what it lies on and look again, or restore it: else a trajectory is lost, or calls repeat"
            yield Violation(NUMBER, each.key, what, fix)
    try:
        found = await asyncio.to_thread(_old, files, wall_ms() / 1000 - LEFT_S)
    except OSError as error:
        where, what = error.filename or str(files.directory), f"it cannot be looked through: {error.strerror}"
        yield Violation(NUMBER, str(where), what, "check that file system, and who may read it")
        return
    for left in await _left(reads, found):
        path = files.path(left.tenant, PayloadFile(0, left.digest))
        what = f"no key names it, and it is older than {LEFT_S / 3600:.0f} hours"
        yield Violation(NUMBER, str(path), what, "see that an API process runs and sees this directory: it collects it")


def _old(files: PayloadFiles, before: float) -> set[OldFile]:
    """By this host's clock: asking the file system's takes a write, and of hours seconds more or less do not count."""
    return {old for folder in files.folders() for old in files.old(folder, before)}


async def _left(reads: Reads, found: set[OldFile]) -> list[OldFile]:
    if found:
        async with contextlib.aclosing(marks.walk(reads)) as walk:
            async for marked in walk:
                found = marked.without(found)
    return sorted(found)
