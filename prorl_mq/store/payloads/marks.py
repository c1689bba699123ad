"""The files that live keys name: a slow walk over a namespace, in pages.

A name moves in one direction: from its job to its group, from there to the run's results, and to what waits for the
archive; that of a checkpoint from its job to a fork, and from there to a fork of that, so forks are walked twice. Keys
are walked in this order, so that a name which is there all the time is seen, wherever it is meanwhile: at the end of
each walk it was seen, or it had moved on to where the next one begins. Texts are searched for names, not decoded: a
name in a field that a later release adds counts as well.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

from prorl_mq.schema.ids import tenant_of
from prorl_mq.store.audit.reads import Reads, misread, pages
from prorl_mq.store.payloads.files import OldFile
from prorl_mq.store.payloads.name import WITHIN

AT_ONCE: Final = 8  # groups, or records, which may be large


class PayloadMarks(NamedTuple):
    """Files that a page of keys names. `unread`: tenants with a key that cannot be read: all that they have counts."""

    named: frozenset[OldFile]
    unread: frozenset[str]

    def without(self, files: set[OldFile]) -> set[OldFile]:
        """Those of some files that this page does not name."""
        left = files - self.named
        return {each for each in left if each.tenant not in self.unread} if self.unread else left


async def walk(reads: Reads) -> AsyncGenerator[PayloadMarks, None]:
    """Every file that the namespace's keys name, in pages of a few keys. Source: SCAN."""
    prefix = reads.keys.prefix
    pattern = "".join(f"[{each}]" if each in "*?[" else each for each in prefix)
    for kind, at_once, look in ORDER:
        async for page in pages(reads, ("SCAN",), ("MATCH", f"{pattern}{kind}:*")):
            names = [name.decode(errors="replace") for name in page]
            for start in range(0, len(names), at_once):
                some = names[start : start + at_once]
                try:
                    async for texts in look(reads, some):
                        found = {name for key, text in texts for name in _named(_tenant(key, prefix), text)}
                        yield PayloadMarks(frozenset(found), frozenset())
                except Exception as error:
                    if not misread(error):
                        raise
                    yield PayloadMarks(frozenset(), frozenset(_tenant(name, prefix) for name in some))


Texts: TypeAlias = list[tuple[str, bytes]]
Look: TypeAlias = Callable[[Reads, Sequence[str]], AsyncIterator[Texts]]


async def _jobs(reads: Reads, keys: Sequence[str]) -> AsyncIterator[Texts]:
    rows = await reads.read_many([("HMGET", key, "trajectory", "exported", "saved_in") for key in keys])
    yield [(key, text) for key, row in zip(keys, rows, strict=True) for text in row if text]


async def _forks(reads: Reads, keys: Sequence[str]) -> AsyncIterator[Texts]:
    rows = await reads.read_many([("HGET", key, "saved_in") for key in keys])
    yield [(key, text) for key, text in zip(keys, rows, strict=True) if text]


async def _groups(reads: Reads, keys: Sequence[str]) -> AsyncIterator[Texts]:
    rows: list[list[bytes]] = await reads.read_many([("HGETALL", key) for key in keys])
    yield [(key, text) for key, row in zip(keys, rows, strict=True) for text in row[1::2]]


async def _results(reads: Reads, keys: Sequence[str]) -> AsyncIterator[Texts]:
    for key in keys:
        after = "-"
        while True:
            [rows] = await reads.read_many([("XRANGE", key, after, "+", "COUNT", AT_ONCE)])
            yield [(key, text) for _, fields in rows for text in fields[1::2]]
            if len(rows) < AT_ONCE:
                break
            after = f"({rows[-1][0].decode()}"


# In which a name moves. With each, how many keys are read together.
ORDER: Final[tuple[tuple[str, int, Look], ...]] = (
    ("job", 256, _jobs), ("fork", 256, _forks), ("fork", 256, _forks), ("group", AT_ONCE, _groups),
    ("departed", 1, _results), ("results", 1, _results), ("departed", 1, _results), ("archive", 1, _results),
)  # fmt: skip


def _named(tenant: str, text: bytes) -> set[OldFile]:
    return {OldFile(tenant, found[2].decode()) for found in WITHIN.finditer(text)}


def _tenant(key: str, prefix: str) -> str:
    return tenant_of(key.removeprefix(prefix).partition(":")[2])
