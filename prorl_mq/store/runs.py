"""Runs as one sees them: what each holds, what its settings are, and why its groups wait."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from prorl_mq.errors import NotFound
from prorl_mq.rules.quotas import Usage, allowed, why_held
from prorl_mq.schema.ids import RunRef, public
from prorl_mq.schema.items import Wanted
from prorl_mq.schema.messages import Purpose, Stage
from prorl_mq.schema.settings import RunSettings
from prorl_mq.schema.status import RunStatus
from prorl_mq.store import backlog, run_settings
from prorl_mq.store.store import Store
from prorl_mq.store.workers import living, slots

__all__ = ["TURN", "RunStatus", "configure", "known", "look", "of_tenant", "status", "usage"]

TURN = "waits for its turn: the first stage is full, or others go first"


async def configure(store: Store, run: RunRef, settings: RunSettings) -> RunStatus:
    """Puts settings in place of what the run had. It need not have had a batch."""
    await store.configure(run, msgspec.json.encode(settings))
    return await status(store, run)


async def status(store: Store, run: RunRef) -> RunStatus:
    """Raises `NotFound`."""
    if await store.read("ZSCORE", store.keys.runs, run) is None:
        raise NotFound(f"there is no run {public(run)!r}: submit a batch, or set its weight or quotas first")
    return (await look(store, [run]))[0]


async def of_tenant(store: Store, tenant: str) -> list[RunStatus]:
    """Every run of a tenant, by name."""
    return await look(store, [run for run in await known(store) if run.partition(":")[0] == tenant])


async def known(store: Store) -> list[RunRef]:
    """Every run that was used in the last week or holds something, by tenant and name."""
    return sorted(RunRef(run.decode()) for run in await store.read("ZRANGE", store.keys.runs, 0, -1))


async def usage(store: Store, runs: Sequence[RunRef]) -> Usage:
    """What quotas count."""
    keys = store.keys
    held = [("HGET", keys.run(run), "bytes") for run in runs]
    reply = await store.read_many([("HGETALL", keys.in_flight), ("HGETALL", keys.unacked), *held])
    jobs, groups, *found = reply
    return Usage(
        jobs=_counts(jobs),
        groups=_counts(groups),
        bytes={run: int(count or 0) for run, count in zip(runs, found, strict=True)},
    )


async def look(store: Store, runs: Sequence[RunRef]) -> list[RunStatus]:
    """The status of each run, in their order."""
    keys = store.keys
    book, used = await run_settings.book(store), await usage(store, runs)
    waiting = await backlog.heads(store, dict.fromkeys(runs, 1))
    sizes = await store.read_many([("ZCARD", keys.backlog(run)) for run in runs])
    evals = await store.read_many([("ZCOUNT", keys.backlog(run), "-inf", "(0") for run in runs])
    quotas, alive = allowed(book, used), slots(await living(store), Stage.INIT)
    return [
        RunStatus(
            run_id=public(run),
            settings=book.run(run),
            backlog=int(size),
            backlog_eval=int(of_eval),
            in_flight=used.jobs.get(run, 0),
            unacked_groups=used.groups.get(run, 0),
            unacked_bytes=used.bytes[run],
            why=_why(_flat(waiting.get(run, {})), alive, partial(why_held, book, used, quotas, run)),
        )
        for run, size, of_eval in zip(runs, sizes, evals, strict=True)
    ]


def _why(groups: Sequence[Wanted], alive: int, held: Callable[[Wanted], str | None]) -> str:
    if not groups:
        return ""
    if not alive:
        return "no init worker is alive: start prorl-worker --stage init"
    return next((why for group in groups if (why := held(group))), TURN)


def _flat(heads: Mapping[Purpose, Sequence[Wanted]]) -> list[Wanted]:
    return [group for groups in heads.values() for group in groups]


def _counts(row: Sequence[bytes]) -> dict[RunRef, int]:
    return {RunRef(run.decode()): int(count) for run, count in zip(row[::2], row[1::2], strict=True)}
