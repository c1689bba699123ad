"""The groups of a run, and the samples of one group."""

from typing import Annotated, Final

from api.operations import operation
from api.request.parameters import choice, cursor, text, whole
from api.request.references import NAME
from prorl_mq.rules.group_views import GroupPage, GroupView
from prorl_mq.schema.ids import GroupRef, RunRef
from prorl_mq.service import groups, inspect, recall
from prorl_mq.store.store import Store

PAGE: Final = 200
LISTS: Final = {"open": groups.open_groups, "closed": groups.closed_groups, "archived": recall.archived_groups}
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


@operation("GET", "/v1/groups/{id}")
async def group_status(store: Store, group: GroupRef) -> GroupView:
    """One group with all its samples."""
    return await recall.group(store, group)
