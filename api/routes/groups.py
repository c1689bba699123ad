"""The groups of a run, and the samples of one group."""

from typing import Annotated, Final

from api.operations import operation
from api.problems import Problem
from api.request.parameters import choice, cursor, text, whole
from api.request.references import NAME
from prorl_mq.rules.group_views import GroupPage, GroupView
from prorl_mq.rules.transcripts import Words
from prorl_mq.schema.ids import GroupRef, RunRef
from prorl_mq.service import groups, inspect, recall, search
from prorl_mq.service.search import SearchPage
from prorl_mq.store.store import Store

PAGE: Final = 200
LISTS: Final = {"open": groups.open_groups, "closed": groups.closed_groups, "archived": recall.archived_groups}
SEARCHED: Final = "Groups with a verdict that are not acknowledged, or those in the archive; the newest first"
STATE: Final = (
    "Groups without a verdict, in no order; those with one, the newest first, until acknowledged; or what the archive "
    "has of those that were"
)


@operation("GET", "/v1/runs/{run}/groups")
async def list_groups(
    store: Store,
    run: RunRef,
    state: Annotated[str, choice("open", "closed", "archived", description=STATE)] = "open",
    batch: Annotated[str | None, text(NAME, "a batch's name", "Only groups of this batch")] = None,
    after: Annotated[str, cursor("`next` of the page before")] = "0",
    limit: Annotated[int, whole(1, PAGE, "Approximate number of groups in one answer")] = 50,
) -> GroupPage:
    """The groups of a run: how many of their samples have ended, and with which rewards."""
    if state != "archived":
        await inspect.expect_run(store, run)
    return await LISTS[state](store, run, batch=batch, after=after, limit=limit)


@operation("GET", "/v1/runs/{run}/search")
async def search_run(
    store: Store,
    run: RunRef,
    q: Annotated[str, text(r"[\s\S]{1,500}", "1 to 500 characters", "Words that must all stand in one text")],
    state: Annotated[str, choice("closed", "archived", description=SEARCHED)] = "closed",
    after: Annotated[str, cursor("`next` of the page before")] = "0",
    limit: Annotated[int, whole(1, PAGE, "Approximate number of hits in one answer")] = 50,
) -> SearchPage:
    """Full-text search in messages, arguments, results, notes and errors; each call takes about a second at most."""
    try:
        words = Words(q)
    except ValueError as error:
        raise Problem(422, str(error), field="q") from None
    if state == "archived":
        return await search.acknowledged(store, run, words, after=after, limit=limit)
    await inspect.expect_run(store, run)
    return await search.closed(store, run, words, after=after, limit=limit)


@operation("GET", "/v1/groups/{id}")
async def group_status(store: Store, group: GroupRef) -> GroupView:
    """One group with all its samples."""
    return await recall.group(store, group)
