"""`prorl-mq archive ls|prune|export`: what the archive of a service holds, with the service or without it."""

import argparse
import asyncio
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from prorl_mq.archive.folder import StoredFile
from prorl_mq.archive.shelf import Shelf
from prorl_mq.archive.table import ArchiveDamaged, sample_of
from prorl_mq.cli.export import written
from prorl_mq.cli.local.place import redis_of
from prorl_mq.converters.table import Row, rows
from prorl_mq.duties.archiving import keeping
from prorl_mq.errors import ConfigurationError
from prorl_mq.private_files import time_there
from prorl_mq.process.screen.tables import table
from prorl_mq.rules.group_views import GroupSummary
from prorl_mq.schema.ids import DEFAULT_TENANT
from prorl_mq.schema.settings import RunSettings
from prorl_mq.store.archive.place import DIRECTORY, archive_of

FAULTS = (ConfigurationError, ArchiveDamaged)
SHOWN: Final = 50  # groups of a run
DAMAGED: Final = 3  # that are named


async def run(given: argparse.Namespace) -> int:
    shelf = await asyncio.to_thread(_shelf, given)
    acts = {"ls": _ls, "prune": _prune, "export": export}
    try:
        print(await asyncio.to_thread(acts[given.action], shelf, given))
    except OSError as error:
        fault = f"{error.filename or shelf.directory}: {error.strerror or error}"
        raise ConfigurationError(f"{fault}; check that file system on this host") from None
    return 0


def _shelf(given: argparse.Namespace) -> Shelf:
    """The archive beside Redis, whether that runs or not."""
    try:
        directory = archive_of(redis_of(given))
    except ConfigurationError:
        directory = given.state_dir.absolute() / "redis" / DIRECTORY
    if directory is None:
        raise ConfigurationError("an address by TCP names no archive: give --redis unix://..., or --state-dir")
    if not directory.is_dir():
        raise ConfigurationError(f"there is no archive: {directory} is not there. Make it, and the service fills it")
    return Shelf(directory, given.namespace)


def _ls(shelf: Shelf, given: argparse.Namespace) -> str:
    if given.run is not None:
        return _groups(shelf, given)
    found = shelf.runs()
    if given.json:
        return _json([each._asdict() for each in found])
    head = ("tenant", "run", "files", "MiB", "first written", "last written")
    lines = [
        (each.tenant, each.run, each.files, round(each.bytes / (1 << 20), 1), _day(each.oldest), _day(each.newest))
        for each in found
    ]
    return table(head, lines) if lines else f"{shelf.directory} holds no group yet"


def _groups(shelf: Shelf, given: argparse.Namespace) -> str:
    page = shelf.groups(*_place(given), batch=None, after="0", limit=SHOWN)
    if not page.groups:
        raise ConfigurationError(_no_run(shelf, given))
    if given.json:
        return _json(page.groups)
    more = "" if page.next is None else f"\nthe newest {SHOWN} of them; `prorl-mq view {shelf.directory}` shows all"
    return (
        table(("group", "batch", "task", "verdict", "samples", "mean", "spread"), list(map(_line, page.groups))) + more
    )


def _line(group: GroupSummary) -> tuple[Any, ...]:
    mean, std = (("-" if each is None else f"{each:.3f}") for each in (group.mean, group.std))
    return group.group_id, group.batch_id, group.task_id, group.state, group.ended, mean, std


def _prune(shelf: Shelf, given: argparse.Namespace) -> str:
    """By the limits beside each run's files: the service, which prunes by itself, has written them there."""
    now, gone = time_there(shelf.directory), list[StoredFile]()
    for each in shelf.runs():
        if given.run is None or _place(given) == (each.tenant, each.run):
            place = shelf.folder(each.tenant, each.run)
            gone += place.prune(place.keeping() or keeping.keeping_of(RunSettings()), now)
            place.tidy(now)
    size = sum(each.bytes for each in gone)
    if given.json:
        return _json({"files": len(gone), "bytes": size})
    return f"removed {len(gone)} files, {size / (1 << 20):.1f} MiB"


def export(shelf: Shelf, given: argparse.Namespace) -> str:
    """Raises `ArchiveDamaged` behind an export without what could not be read."""
    if given.run is None or given.out is None:
        raise ConfigurationError("say which run, and where to: prorl-mq archive export RUN --out FILE")
    if not shelf.folder(*_place(given)).files():
        raise ConfigurationError(_no_run(shelf, given))
    damaged = list[ArchiveDamaged]()
    said = written(exported(shelf, *_place(given), damaged.append), given.out, given.format)
    if damaged:
        faults = "; ".join(str(each) for each in damaged[:DAMAGED])
        raise ArchiveDamaged(
            f"{said}, without what {len(damaged)} damaged places hold ({faults}): put these files back from a copy, or "
            "remove them"
        )
    return _json({"out": str(given.out), "rows": int(said.partition(" ")[0])}) if given.json else said


def exported(shelf: Shelf, tenant: str, run: str, damaged: Callable[[ArchiveDamaged], None]) -> Iterator[Row]:
    """The rows that `prorl-mq export` would have made of the run's samples."""
    for group in shelf.whole(tenant, run, damaged):
        for sample in group.record.samples:
            yield from rows(sample_of(group.record, sample, group.trajectories.get(sample.job_id)))


def _place(given: argparse.Namespace) -> tuple[str, str]:
    """Tenant and name of the run that was named."""
    tenant, _, name = given.run.rpartition(":")
    return tenant or DEFAULT_TENANT, name


def _no_run(shelf: Shelf, given: argparse.Namespace) -> str:
    tenant, name = _place(given)
    names: Sequence[str] = [each.run if each.tenant == tenant else f"{each.tenant}:{each.run}" for each in shelf.runs()]
    return f"the archive has no run {name!r} of tenant {tenant!r}; it has {', '.join(names[:8]) or 'none yet'}"


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(sep=" ", timespec="minutes").removesuffix("+00:00")


def _json(data: Any) -> str:
    return msgspec.json.encode(data).decode()
