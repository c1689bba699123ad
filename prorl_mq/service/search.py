"""Full-text search over the groups of a run, the newest first: closed ones in Redis, or those of an archive or a file.

One call looks at some groups for about a second, and says where the next one continues, so that a search of any size
is a series of short calls.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from prorl_mq.archive.table import WholeGroup
from prorl_mq.clock import monotonic
from prorl_mq.errors import PayloadUnavailable
from prorl_mq.rules.group_views import GroupPage
from prorl_mq.rules.transcripts import Hit, Words, hits
from prorl_mq.schema.codec import unpack_trajectory
from prorl_mq.schema.ids import RunRef, TenantId, tenant_of
from prorl_mq.schema.messages import GroupRecord
from prorl_mq.schema.trajectory import Trajectory
from prorl_mq.service import archived
from prorl_mq.store import results
from prorl_mq.store.payloads import reading
from prorl_mq.store.store import Store

LONGEST_S: Final = 1.0  # of one call, but for its last group
TOGETHER: Final = 8  # groups read from Redis at a time
READ_S: Final = 1.0  # for a trajectory in a file
_TURNS: Final[defaultdict[TenantId, asyncio.Lock]] = defaultdict(asyncio.Lock)  # one search of a tenant at a time


class SearchPage(msgspec.Struct, frozen=True, kw_only=True):
    """Hits in some groups. `next` is what to send as `after` for the following ones; null: these were the last."""

    hits: Sequence[Hit]
    searched: int  # groups
    unread: int = 0  # samples of them whose trajectory could not be read
    next: str | None


async def closed(store: Store, run: RunRef, words: Words, *, after: str, limit: int) -> SearchPage:
    """Searches groups that are not acknowledged. A trajectory that cannot be read is left out, and counted."""
    found, searched, unread, last = list[Hit](), 0, 0, "" if after == "0" else after
    async with _TURNS[tenant_of(run)]:
        give_up = monotonic() + LONGEST_S
        while entries := await results.newest(store, run, before=last, limit=TOGETHER):
            for cursor, record in entries:
                last = cursor
                if record is not None:
                    trajectories = await _trajectories(store, run, record)
                    found += await asyncio.to_thread(list, hits(words, record, trajectories))
                    searched += 1
                    unread += sum(bool(each.trajectory) for each in record.samples) - len(trajectories)
                if len(found) >= limit or monotonic() > give_up:
                    return SearchPage(hits=found, searched=searched, unread=unread, next=last)
    return SearchPage(hits=found, searched=searched, unread=unread, next=None)


async def acknowledged(store: Store, run: RunRef, words: Words, *, after: str, limit: int) -> SearchPage:
    """Searches what the archive has. Raises `PayloadUnavailable`."""
    async with _TURNS[tenant_of(run)]:
        found = await archived.search(store, run, lambda groups, whole: among(groups, whole, words, after, limit))
    return found or SearchPage(hits=(), searched=0, next=None)


def among(
    groups: Callable[[str], GroupPage], whole: Callable[[str], WholeGroup | None], words: Words, after: str, limit: int
) -> SearchPage:
    """Searches groups of a page after the other; `whole` reads one by its name. A page is searched to its end."""
    found, searched, unread, give_up = list[Hit](), 0, 0, monotonic() + LONGEST_S
    place: str | None = after
    while place is not None and len(found) < limit and monotonic() < give_up:
        page = groups(place)
        for summary in page.groups:
            kept = whole(summary.group_id)
            if kept is not None:
                searched += 1
                found += hits(words, kept.record, kept.trajectories)
                there = kept.trajectories.keys()
                unread += sum(bool(each.trajectory) and each.job_id not in there for each in kept.record.samples)
        place = page.next
    return SearchPage(hits=found, searched=searched, unread=unread, next=place)


async def _trajectories(store: Store, run: RunRef, record: GroupRecord) -> dict[str, Trajectory]:
    found = {}
    for sample in record.samples:
        try:
            data = await reading.get(store, run, sample.trajectory, within_s=READ_S) if sample.trajectory else None
        except PayloadUnavailable:
            continue
        if data is not None:
            found[sample.job_id] = await unpack_trajectory(data)
    return found
