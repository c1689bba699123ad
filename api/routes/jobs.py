"""One job: its state and why it waits, its time line, its trajectory as a whole and in pieces."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec
from msgspec.structs import replace

from api.operations import operation
from api.request.parameters import choice, flag, whole
from api.vocabulary import loaded
from prorl_mq.schema.ids import JobRef
from prorl_mq.schema.messages import Event, JobStatus
from prorl_mq.schema.timeline import Timeline
from prorl_mq.schema.trajectory import Trajectory
from prorl_mq.schema.turns import LoggedTurns
from prorl_mq.service import recall, trajectory_pages
from prorl_mq.service.trajectory_pages import Outline, TokenPage
from prorl_mq.service.turn_pages import AT_ONCE
from prorl_mq.store.store import Store

MOST_TURNS: Final = 50
MOST_TOKENS: Final = 4_096
PLACES: Final = 10_000_000
PART: Final = "Which tokens of the segment"


class JobEvents(msgspec.Struct, frozen=True, kw_only=True):
    """The newest 64 state changes of a job, oldest first."""

    events: Sequence[Event]


@operation("GET", "/v1/jobs/{id}")
async def job_status(store: Store, job: JobRef) -> JobStatus:
    """The stage and state of a job, and why it waits."""
    return await recall.job_status(store, job)


@operation("GET", "/v1/jobs/{id}/events")
async def job_events(store: Store, job: JobRef) -> JobEvents:
    """The last events of a job."""
    return JobEvents(events=await recall.job_events(store, job))


@operation("GET", "/v1/jobs/{id}/timeline")
async def job_timeline(store: Store, job: JobRef) -> Timeline:
    """Every state change of a job with its duration, its attempts, and why it waits."""
    return await recall.job_timeline(store, job)


@operation("GET", "/v1/jobs/{id}/trajectory")
async def job_trajectory(store: Store, job: JobRef) -> Trajectory:
    """The token-exact record of a job; MessagePack is several times smaller than JSON."""
    return await recall.job_trajectory(store, job)


@operation("GET", "/v1/jobs/{id}/turns")
async def job_turns(
    store: Store,
    job: JobRef,
    after: Annotated[int, whole(0, PLACES, "The number of the first turn wanted")] = 0,
    limit: Annotated[int, whole(1, MOST_TURNS, "Turns in one answer at most")] = 10,
    full: Annotated[bool, flag("true: whole texts; else each is cut after 4,000 characters")] = False,
) -> Outline:
    """The agent's messages and tool calls, turn by turn, without tokens."""
    trajectory = await recall.job_trajectory(store, job)
    return await asyncio.to_thread(trajectory_pages.outline, trajectory, after=after, limit=limit, full=full)


@operation("GET", "/v1/jobs/{id}/log")
async def job_log(
    store: Store,
    job: JobRef,
    after: Annotated[int, whole(0, PLACES, "The number of the first turn wanted")] = 0,
    limit: Annotated[int, whole(1, MOST_TURNS, "Turns in one answer at most; also about 1 MiB")] = AT_ONCE,
) -> LoggedTurns:
    """The tokens, log-probabilities and results of each finished turn, while the rollout is under way too."""
    found = await recall.job_log(store, job, after=after, limit=limit)
    known = await loaded()
    if known is None:
        return found
    told = [replace(turn, text=known.text(turn.ids)) for turn in found.turns]
    under_way = found.under_way and replace(found.under_way, text=known.text(found.under_way.ids))
    return replace(found, turns=told, under_way=under_way)


@operation("GET", "/v1/jobs/{id}/tokens")
async def job_tokens(
    store: Store,
    job: JobRef,
    segment: Annotated[int, whole(0, PLACES, "Which segment")] = 0,
    part: Annotated[Literal["prompt", "response"], choice("prompt", "response", description=PART)] = "response",
    start: Annotated[int, whole(0, PLACES, "The first token wanted")] = 0,
    limit: Annotated[int, whole(1, MOST_TOKENS, "Tokens in one answer at most")] = 512,
) -> TokenPage:
    """A range of a trajectory's tokens with mask, log-probabilities and policy versions."""
    trajectory = await recall.job_trajectory(store, job)
    found = trajectory_pages.tokens(trajectory, segment=segment, part=part, start=start, limit=limit)
    known = await loaded()
    return found if known is None else replace(found, texts=known.texts(found.ids))
