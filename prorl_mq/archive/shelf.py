"""The archive as pages read it: the groups of a run, the newest first, and one group whole.

A damaged file hides its own groups and no others.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from prorl_mq.archive import folder, table
from prorl_mq.archive.folder import RunFolder, StoredFile
from prorl_mq.archive.table import ArchiveDamaged, ShelvedGroup, WholeGroup
from prorl_mq.rules.group_views import GroupPage, GroupSummary

log = logging.getLogger("prorl_mq.archive")
FILES: Final = 2_000  # of a run that one look reads the footers of, the newest first


class ShelvedRun(NamedTuple):
    """One run of the archive, counted by its files."""

    tenant: str
    run: str
    files: int
    bytes: int
    oldest: float  # seconds since the epoch
    newest: float


class Shelf:
    """The archive of one namespace. Everything here waits for a file system: call it in a thread."""

    def __init__(self, directory: Path, namespace: str) -> None:
        self.directory = directory
        self.namespace = namespace

    @property
    def there(self) -> bool:
        """True if there is an archive."""
        return self.directory.is_dir()

    def folder(self, tenant: str, run: str) -> RunFolder:
        return RunFolder(self.directory, self.namespace, tenant, run)

    def runs(self, tenant: str | None = None) -> list[ShelvedRun]:
        """Every run with a file, by tenant and name; `tenant`: only its own."""
        found = []
        for owner, run in folder.runs(self.directory, self.namespace, tenant):
            files = self.folder(owner, run).files()
            if files:
                held = sum(each.bytes for each in files)
                found.append(ShelvedRun(owner, run, len(files), held, files[0].at, files[-1].at))
        return found

    def groups(self, tenant: str, run: str, *, batch: str | None, after: str, limit: int) -> GroupPage:
        """A page of a run's groups, the newest first. `after`: `next` of the page before, or 0."""
        number, _, place = after.partition("-")
        start = (int(number), int(place or 0)) if int(number) else None
        found: list[GroupSummary] = []
        for file, contained in self._newest(tenant, run, before=start[0] + 1 if start else None):
            for at in range(len(contained) - 1, -1, -1):
                if start is not None and (file.number, at) >= start:
                    continue
                if batch in {None, contained[at].summary.batch_id}:
                    found.append(contained[at].summary)
                if len(found) == limit:
                    return GroupPage(groups=found, next=f"{file.number}-{at}")
        return GroupPage(groups=found, next=None)

    def count(self, tenant: str, run: str) -> int:
        """Number of a run's groups, of its newest `FILES` files."""
        return sum(len(contained) for _, contained in self._newest(tenant, run))

    def group(self, tenant: str, run: str, group: str) -> WholeGroup | None:
        """The newest group of a name; None where there is none. Raises `ArchiveDamaged`."""
        for file, contained in self._newest(tenant, run):
            place = next((each for each in reversed(contained) if each.summary.group_id == group), None)
            if place is not None:
                try:
                    return table.read(file.path, place)
                except FileNotFoundError:
                    return None
        return None

    def whole(self, tenant: str, run: str, damaged: Callable[[ArchiveDamaged], None]) -> Iterator[WholeGroup]:
        """Every group of a run, the oldest first. What cannot be read is told, and left out."""
        for file in self.folder(tenant, run).files():
            try:
                contained = table.footer(file.path).groups
            except FileNotFoundError:
                continue
            except ArchiveDamaged as error:
                damaged(error)
                continue
            for place in contained:
                try:
                    yield table.read(file.path, place)
                except FileNotFoundError:
                    break
                except ArchiveDamaged as error:
                    damaged(error)

    def _newest(
        self, tenant: str, run: str, *, before: int | None = None
    ) -> Iterator[tuple[StoredFile, Sequence[ShelvedGroup]]]:
        files = [each for each in self.folder(tenant, run).files() if before is None or each.number < before]
        for file in files[: -FILES - 1 : -1]:
            try:
                yield file, table.footer(file.path).groups
            except FileNotFoundError:
                continue
            except ArchiveDamaged as error:
                tell(str(error))


@lru_cache(maxsize=table.FOOTERS)
def tell(fault: str) -> None:
    """Says once what is left out of lists: a search passes the same file for each of its groups."""
    log.warning("%s; what it holds is left out", fault)
