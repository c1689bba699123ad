"""Limits of what the archive keeps of a run: of its settings while Redis has them, else as its folder says."""

import contextlib
from collections.abc import Mapping
from typing import Final

from prorl_mq.archive.folder import Keeping, StoredFile
from prorl_mq.archive.shelf import Shelf
from prorl_mq.private_files import time_there
from prorl_mq.schema.ids import RunRef, run_ref
from prorl_mq.schema.settings import RunSettings
from prorl_mq.store import run_settings, runs
from prorl_mq.store.store import Store

DAYS: Final = 30
BYTES: Final = 64 << 30


def keeping_of(settings: RunSettings) -> Keeping:
    """Days and bytes of a run's settings, with their defaults."""
    days, most = settings.archive_days, settings.archive_bytes
    return Keeping(days=DAYS if days is None else days, bytes=BYTES if most is None else most)


async def told(store: Store) -> dict[RunRef, Keeping]:
    """Reads the limits of each run that Redis knows."""
    book = await run_settings.book(store)
    return {run: keeping_of(book.run(run)) for run in await runs.known(store)}


def prune(shelf: Shelf, told: Mapping[RunRef, Keeping]) -> list[StoredFile]:
    """Removes the files that their runs keep no longer: which. Waits for the file system; raises `OSError`."""
    now, gone = time_there(shelf.directory), list[StoredFile]()
    for each in shelf.runs():
        place = shelf.folder(each.tenant, each.run)
        limits = told.get(run_ref(each.tenant, each.run))
        gone += place.prune(limits or place.keeping() or keeping_of(RunSettings()), now)
        if limits is not None:
            with contextlib.suppress(OSError):  # a full disk may not take it, and the next prune says it again
                place.keep(limits)
        place.tidy(now)
    return gone
