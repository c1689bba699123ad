"""Looking at what waits in the runs' backlogs."""

from collections.abc import Mapping, Sequence

from prorl_mq.schema.ids import GroupRef, RunRef
from prorl_mq.schema.items import Wanted
from prorl_mq.schema.messages import Purpose
from prorl_mq.schema.order import purpose_of
from prorl_mq.store.store import Store

Heads = dict[RunRef, dict[Purpose, list[Wanted]]]


async def heads(store: Store, most: Mapping[RunRef, int]) -> Heads:
    """The first groups of each run's backlog, up to `most` of each purpose. A run without any is left out."""
    keys, found = store.keys, list[tuple[RunRef, Purpose, GroupRef]]()
    fronts = await store.read_many(
        [("ZRANGE", keys.backlog(run), 0, count - 1, "WITHSCORES") for run, count in most.items()]
    )
    mixed: list[RunRef] = []  # evaluation stands in front: training is looked for behind it
    for run, front in zip(most, fronts, strict=True):
        scored = [(purpose_of(float(score)), ref) for ref, score in zip(front[::2], front[1::2], strict=True)]
        first = scored[0][0] if scored else Purpose.TRAIN
        found += [(run, first, GroupRef(ref.decode())) for purpose, ref in scored if purpose is first]
        if first is Purpose.EVAL:
            mixed.append(run)
    behind = await store.read_many(
        [("ZRANGEBYSCORE", keys.backlog(run), 0, "+inf", "LIMIT", 0, most[run]) for run in mixed]
    )
    for run, refs in zip(mixed, behind, strict=True):
        found += [(run, Purpose.TRAIN, GroupRef(ref.decode())) for ref in refs]
    return await _wanted(store, found)


async def _wanted(store: Store, found: Sequence[tuple[RunRef, Purpose, GroupRef]]) -> Heads:
    """A group that has gone meanwhile is left out."""
    reads = [("HMGET", store.keys.group(ref), "next", "wanted", "total_ms") for _, _, ref in found]
    made: Heads = {}
    for (run, purpose, ref), (first, wanted, total_ms) in zip(found, await store.read_many(reads), strict=True):
        if first is not None:
            group = Wanted(ref, int(first), int(wanted), int(total_ms))
            made.setdefault(run, {}).setdefault(purpose, []).append(group)
    return made
