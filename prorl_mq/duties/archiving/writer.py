"""The archive's writer: each group goes into one file of its run, whoever else writes, and whoever was killed.

What a killed writer, a writer beside this one, or a Redis that has lost its last second brings again is known by its
name: within `AGAIN_MS` one name is one group, since its batch answers a repeat so long. All of this waits for a file
system: call it in a thread.
"""

import logging
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

from prorl_mq.archive import table
from prorl_mq.archive.folder import Keeping, RunFolder
from prorl_mq.archive.shelf import Shelf
from prorl_mq.archive.table import ArchiveDamaged, WholeGroup
from prorl_mq.schema.ids import RunRef, public, tenant_of

log = logging.getLogger("prorl_mq.duties")
AGAIN_MS: Final = 7 * 24 * 3600 * 1000
TRIES: Final = 8  # for a number, of which another writer has had one each time
RUNS: Final = 64  # that are remembered


class _Known(NamedTuple):
    """Files of a run as this writer last saw them: the newest number, and groups by name, each with its time in ms."""

    newest: int
    groups: dict[str, int]


class GroupWriter:
    """One process's writer. It remembers what it has seen of the newest runs."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._known: OrderedDict[tuple[RunRef, str], _Known] = OrderedDict()

    def write(self, run: RunRef, groups: Sequence[WholeGroup], keeping: Keeping, *, now_ms: int, data: str) -> int:
        """Sees that the archive has each of some groups: how many were written now. Raises `OSError`.

        `data`: the mark of the Redis data that they come from; other data may have the same names.
        """
        folder = self._shelf.folder(tenant_of(run), public(run))
        for _ in range(TRIES):
            known = self._known.get((run, data)) or self._look(folder, run, now_ms, data)
            new = {each.record.group_id: each for each in groups if self._is_new(known, each, now_ms)}
            if not new:
                return 0
            whole, number = list(new.values()), known.newest + 1
            if folder.commit(number, lambda file, whole=whole: table.write(file, whole, archived_ms=now_ms, data=data)):  # type: ignore[misc]
                known.groups.update(dict.fromkeys(new, now_ms))
                self._remember((run, data), _Known(number, known.groups))
                folder.keep(keeping)
                return len(new)
            self._known.pop((run, data), None)
        raise TimeoutError(f"{folder.path}: other writers take every number")

    @staticmethod
    def _is_new(known: _Known, group: WholeGroup, now_ms: int) -> bool:
        return known.groups.get(group.record.group_id, -AGAIN_MS) <= now_ms - AGAIN_MS

    def _look(self, folder: RunFolder, run: RunRef, now_ms: int, data: str) -> _Known:
        files, groups = folder.files(), dict[str, int]()
        for each in reversed(files):
            try:
                footer = table.footer(each.path)
            except FileNotFoundError:
                continue
            except ArchiveDamaged as error:  # its number is known from its name, and what it holds is lost anyway
                log.warning("duty archive: %s; it is passed over", error)
                continue
            if footer.archived_ms <= now_ms - AGAIN_MS:
                break
            if footer.data == data:
                groups.update(dict.fromkeys((one.summary.group_id for one in footer.groups), footer.archived_ms))
        known = _Known(files[-1].number if files else 0, groups)
        self._remember((run, data), known)
        return known

    def _remember(self, key: tuple[RunRef, str], known: _Known) -> None:
        self._known[key] = known
        self._known.move_to_end(key)
        if len(self._known) > RUNS:
            self._known.popitem(last=False)
