"""Looks at groups and jobs wherever they are: in Redis, or in the archive once their trainer has acknowledged them."""

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from prorl_mq.archive.table import WholeGroup
from prorl_mq.errors import NotFound
from prorl_mq.rules.group_views import GroupPage, GroupView, closed_view
from prorl_mq.schema.ids import GroupRef, JobRef, RunRef, group_of, public
from prorl_mq.schema.messages import Event, JobStatus, SampleRecord, events
from prorl_mq.schema.timeline import Timeline, timeline
from prorl_mq.schema.trajectory import Trajectory
from prorl_mq.schema.turns import LoggedTurns
from prorl_mq.service import archived, groups, inspect, turn_pages
from prorl_mq.store import runs
from prorl_mq.store.store import Store


async def archived_groups(store: Store, run: RunRef, *, batch: str | None, after: str, limit: int) -> GroupPage:
    """The run's acknowledged groups, the newest first. Raises `NotFound` for a run that neither side knows."""
    found = await archived.groups(store, run, batch=batch, after=after, limit=limit)
    if not found.groups:
        await runs.expect(store, run)
    return found


async def group(store: Store, ref: GroupRef) -> GroupView:
    """Raises `NotFound`."""
    try:
        return await groups.group(store, ref)
    except NotFound:
        kept = await archived.group(store, ref)
        if kept is None:
            raise
        return view(kept)


def view(kept: WholeGroup) -> GroupView:
    """An archived group with all its samples."""
    shown = closed_view(kept.record)
    return replace(shown, summary=replace(shown.summary, archived=True))


async def job_status(store: Store, ref: JobRef) -> JobStatus:
    """Raises `NotFound`."""
    try:
        return await inspect.job_status(store, ref)
    except NotFound as error:
        return archived.status(*await _kept(store, ref, error))


async def job_events(store: Store, ref: JobRef) -> Sequence[Event]:
    """The newest 64 state changes, oldest first. Raises `NotFound`."""
    try:
        return await inspect.job_events(store, ref)
    except NotFound as error:
        kept, sample = await _kept(store, ref, error)
        return events(sample.job_id, kept.record.timelines.get(sample.job_id, ""))


async def job_timeline(store: Store, ref: JobRef) -> Timeline:
    """All that is known of what a job did. Raises `NotFound`."""
    status = await job_status(store, ref)
    return timeline(status, await job_events(store, ref), await store.now_ms())


async def job_trajectory(store: Store, ref: JobRef) -> Trajectory:
    """Raises `NotFound` and `PayloadUnavailable`."""
    try:
        return await inspect.job_trajectory(store, ref)
    except NotFound as error:
        kept, sample = await _kept(store, ref, error)
        if sample.job_id not in kept.trajectories:
            raise NotFound(f"job {public(ref)!r} ended without a trajectory, or it could not be archived") from None
        return kept.trajectories[sample.job_id]


async def job_log(store: Store, ref: JobRef, *, after: int, limit: int) -> LoggedTurns:
    """The finished turns of a job from number `after` on. Raises `NotFound`."""
    try:
        return await inspect.job_log(store, ref, after=after, limit=limit)
    except NotFound as error:
        kept, sample = await _kept(store, ref, error)
        trajectory = kept.trajectories.get(sample.job_id)
        if trajectory is None:
            return inspect.turns_of(ref, turn_pages.NONE, after, note="it ended without a trajectory", complete=True)
        page = await asyncio.to_thread(turn_pages.ended, trajectory, after=after, limit=limit)
        note = "" if trajectory.turns else "its trajectory has no turns"
        return inspect.turns_of(ref, page, after, note=note, complete=not page.more)


async def _kept(store: Store, ref: JobRef, missing: NotFound) -> tuple[WholeGroup, SampleRecord]:
    """The archive's copy of a job's group, and its sample there. Raises what Redis's side has raised."""
    kept = await archived.group(store, group_of(ref)) if ref.count(":") == 3 else None
    sample = next((each for each in kept.record.samples if each.job_id == public(ref)), None) if kept else None
    if kept is None or sample is None:
        raise missing
    return kept, sample
