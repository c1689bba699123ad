"""A trainer that may be killed at any moment: it submits at a steady pace, reads, acknowledges, and keeps a journal."""

import argparse
import asyncio
import random
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from prorl_mq.client.http import HttpDoor
from prorl_mq.client.patience import persistently
from prorl_mq.client.transport import Closed, ClosedGroup
from prorl_mq.errors import ServiceError
from prorl_mq.schema.messages import BatchRequest, GroupRecord, GroupRequest, Limits, Task

N: Final = 8  # samples of a group
GROUPS: Final = 4  # of a batch
PATIENCE_S: Final = 300.0
PAGE_S: Final = 2.0
LIMITS: Final = Limits(max_deaths=100, max_attempts=100, backoff_ms=50, run_ms=30_000, init_ms=30_000, eval_ms=30_000)


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the journal: a batch that was accepted, a group that was read, or a result that was acknowledged."""

    at: float
    batch: int | None = None
    group: str = ""
    cursor: str = ""
    good: int = 0  # samples with the reward that they must have
    acked: bool = False


class Journal:
    """Lines that a killed client left, and more of them."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._opened = file.open("ab", buffering=0)

    def write(self, entry: Entry) -> None:
        self._opened.write(msgspec.json.encode(entry) + b"\n")

    def entries(self) -> list[Entry]:
        return read(self.file)


def read(file: Path) -> list[Entry]:
    """A line that is cut off is none: its writer died before it could rely on it."""
    lines = file.read_bytes().split(b"\n")[:-1] if file.exists() else []
    return [msgspec.json.decode(line, type=Entry) for line in lines]


def batch(run: str, number: int) -> BatchRequest:
    """Jobs of mixed length; some fail in INIT, some talk to a backend."""
    rng = random.Random(number)
    groups = []
    for place in range(GROUPS):
        payload = {
            "init_ms": rng.choice([0, 0, 2, 20]),
            "run_ms": rng.choice([0, 5, 20, 100]),
            "eval_ms": rng.choice([0, 0, 5]),
            "fail_init": rng.random() < 0.1,
            "llm": rng.random() < 0.3,
            "secret": f"CANARY-{number}-{place}",
        }
        groups.append(GroupRequest(task=Task(task_id=f"t{place}", data_source="marked", payload=payload), n=N))
    return BatchRequest(run_id=run, batch_id=f"b{number}", groups=groups, limits=LIMITS)


def good(record: GroupRecord) -> int:
    """Samples that count and have their reward, in an accepted group."""
    kept = [sample for sample in record.samples if not sample.replaced]
    right = sum(sample.reward == float(sample.index % 2) for sample in kept)
    return right if record.verdict == "accepted" and len(kept) == N else 0


class Trainer:
    """One incarnation of it, between two kills."""

    def __init__(self, door: HttpDoor, journal: Journal, run: str, batches: int, pace: float) -> None:
        self.door, self.journal, self.run, self.batches, self.pace = door, journal, run, batches, pace
        before = journal.entries()
        self.accepted = {entry.batch for entry in before if entry.batch is not None}
        self.cursors = {entry.cursor for entry in before if entry.group}
        self.groups = {entry.group for entry in before if entry.group}
        self._known = asyncio.Event()  # a run is there from its first batch on
        if self.accepted:
            self._known.set()

    async def train(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._submit())
            tasks.create_task(self._read())

    async def _submit(self) -> None:
        for number in range(self.batches):
            if number not in self.accepted:
                request = batch(self.run, number)
                await persistently(lambda request=request: self.door.submit(request), patience_s=PATIENCE_S)  # type: ignore[misc]
                self.journal.write(Entry(at=time.monotonic(), batch=number))
                self._known.set()
                await asyncio.sleep(N * GROUPS / self.pace)

    async def _read(self) -> None:
        after, wanted = "0", self.batches * GROUPS
        await self._known.wait()
        while len(self.groups) < wanted:
            page = await self._page(after)
            closed = [each for each in page if isinstance(each, ClosedGroup)]
            self._write_down(closed)
            if closed:
                after = closed[-1].cursor
                await self._acknowledge([each.cursor for each in closed])

    async def _page(self, after: str) -> list[Closed]:
        """Nothing, where a crash of Redis has taken the run."""
        try:
            return await persistently(lambda: self.door.page(self.run, after, PAGE_S), patience_s=PATIENCE_S)
        except ServiceError as error:
            if error.status != 404:
                raise
            await asyncio.sleep(PAGE_S / 10)
            return []

    def _write_down(self, closed: Iterable[ClosedGroup]) -> None:
        for cursor, record in closed:
            self.groups.add(record.group_id)
            if cursor not in self.cursors:
                self.cursors.add(cursor)
                entry = Entry(at=time.monotonic(), group=record.group_id, cursor=cursor, good=good(record))
                self.journal.write(entry)

    async def _acknowledge(self, cursors: list[str]) -> None:
        await persistently(lambda: self.door.ack(self.run, cursors), patience_s=PATIENCE_S)
        for cursor in cursors:
            self.journal.write(Entry(at=time.monotonic(), cursor=cursor, acked=True))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.chaos.client", description=__doc__)
    parser.add_argument("uds")
    parser.add_argument("journal", type=Path)
    parser.add_argument("run")
    parser.add_argument("--batches", type=int, required=True)
    parser.add_argument("--pace", type=float, required=True, help="jobs a second")
    given = parser.parse_args()

    async def train() -> None:
        door = HttpDoor("http://api", uds=given.uds)
        try:
            await Trainer(door, Journal(given.journal), given.run, given.batches, given.pace).train()
        finally:
            await door.aclose()

    asyncio.run(train())


if __name__ == "__main__":
    main()
