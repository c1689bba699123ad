"""The archive's copy of what a trainer has acknowledged: groups, jobs and trajectories, as pages show them."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from prorl_mq.archive.shelf import Shelf
from prorl_mq.archive.table import ArchiveDamaged, WholeGroup
from prorl_mq.errors import ConfigurationError, PayloadUnavailable
from prorl_mq.rules.group_views import GroupPage
from prorl_mq.schema.ids import GroupRef, RunRef, public, tenant_of
from prorl_mq.schema.messages import JobStatus, SampleRecord
from prorl_mq.store.archive.waiting import ArchiveState
from prorl_mq.store.store import Store

T = TypeVar("T")
ANSWER_S: Final = 5.0  # within which the archive must answer a page
KEPT: Final = "it was acknowledged, and this is the archive's copy"
_THREADS: Final = ThreadPoolExecutor(2, thread_name_prefix="archive-reads")  # a disk that hangs keeps these alone
_NOBODY: Final = GroupPage(groups=(), next=None)


async def groups(store: Store, run: RunRef, *, batch: str | None, after: str, limit: int) -> GroupPage:
    """Acknowledged groups, the newest first; none where there is no archive. Raises `PayloadUnavailable`."""
    found = await _read(
        store, lambda shelf: shelf.groups(tenant_of(run), public(run), batch=batch, after=after, limit=limit)
    )
    return found or _NOBODY


async def group(store: Store, ref: GroupRef) -> WholeGroup | None:
    """An acknowledged group; None where the archive has none of that name. Raises `PayloadUnavailable`."""
    run, _, name = public(ref).partition(":")
    return await _read(store, lambda shelf: shelf.group(tenant_of(ref), run, name))


async def search(
    store: Store, run: RunRef, look: Callable[[Callable[[str], GroupPage], Callable[[str], WholeGroup | None]], T]
) -> T | None:
    """The result of `look`, in a thread, for a function that lists the run's groups, one at a time so that `look` can
    stop behind each, and one for a group by its name. None where there is no archive. Raises `PayloadUnavailable`.
    """
    tenant, name = tenant_of(run), public(run)
    return await _read(
        store,
        lambda shelf: look(
            lambda after: shelf.groups(tenant, name, batch=None, after=after, limit=1),
            lambda group: shelf.group(tenant, name, group),
        ),
    )


def status(kept: WholeGroup, sample: SampleRecord) -> JobStatus:
    """The state of an archived job."""
    record = kept.record
    return JobStatus(
        job_id=sample.job_id,
        group_id=record.group_id,
        batch_id=record.batch_id,
        run_id=record.run_id,
        task_id=record.task_id,
        state="done",
        stage=None,
        attempt=sample.attempt,
        owner=None,
        outcome=sample.outcome,
        why=f"ended as {sample.outcome}; its group was {record.verdict}; {KEPT}",
        note=sample.note,
        evidence=sample.evidence,
        error=sample.error,
        archived=True,
    )


def told(state: ArchiveState, now_ms: int) -> str:
    """Says what the archive does, in one line; empty where it has done nothing."""
    done = f"{state.archived} groups archived"
    if state.passed_over:
        done += f", {state.passed_over} passed over for want of room"
    if state.incomplete:
        done += f", {state.incomplete} without a trajectory that could not be read"
    if state.fault:
        waits = f"{state.groups} groups wait ({state.bytes / (1 << 20):.1f} of {state.most_bytes / (1 << 20):.0f} MiB)"
        return f"archive: it cannot be written: {state.fault}; {waits}; {done}"
    if state.until_ms <= now_ms:
        return f"archive: off; {done}" if state.archived else ""
    if not (state.archived or state.groups or state.passed_over):
        return ""
    return f"archive: {done}, {state.groups} wait ({state.bytes / (1 << 20):.1f} MiB)"


async def _read(store: Store, look: Callable[[Shelf], T]) -> T | None:
    if store.archive is None:
        return None
    shelf = Shelf(store.archive, store.keys.namespace)
    try:
        async with asyncio.timeout(ANSWER_S):
            there = asyncio.get_running_loop().run_in_executor(_THREADS, lambda: look(shelf) if shelf.there else None)
            return await there
    except TimeoutError:
        raise PayloadUnavailable(
            f"{store.archive} has not answered for {ANSWER_S:g} s: check that file system on this host"
        ) from None
    except OSError as error:
        raise PayloadUnavailable(f"{store.archive} cannot be read: {error.strerror or error}") from error
    except (ArchiveDamaged, ConfigurationError) as error:
        raise PayloadUnavailable(str(error)) from error
