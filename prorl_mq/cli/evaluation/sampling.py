"""Samples a suite through the service, and continues where an earlier start ended.

A batch is written to the directory before it is submitted, and a group is acknowledged when its samples are on the
disk. So a later start knows every group that may exist, follows those that are under way, and asks for nothing that
has a result. Groups are not refilled: a sample that infrastructure lost, after the attempts that its limits allow, has
no result, and the next start samples it again under another group and another seed.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from prorl_mq.cli.evaluation.models import ServedModels
from prorl_mq.cli.evaluation.progress import EvaluationProgress
from prorl_mq.cli.out_file import OutFile
from prorl_mq.cli.submit import PART_BYTES, collect
from prorl_mq.client import AsyncClient
from prorl_mq.errors import ConfigurationError, ServiceError
from prorl_mq.evaluation import definition, samples
from prorl_mq.evaluation.definition import Definition, KeptSet, Submitted
from prorl_mq.evaluation.suite import LoadedSet, Suite
from prorl_mq.schema.messages import BatchRequest, GroupRequest, Purpose

PART_GROUPS: Final = 1_000  # groups in one batch
NOT_THERE: Final = 404
SEED_STEP: Final = 0x9E3779B1  # between the seeds of two rounds
SEEDS: Final = 1 << 62


class SuiteSampling:
    """One start of an evaluation in its directory."""

    def __init__(self, client: AsyncClient, directory: Path, suite: Suite, kept: Definition, out: OutFile) -> None:
        self._client = client
        self._directory = directory
        self._sets = {each.about.name: each for each in suite.sets}
        self._solved_at = {each.name: each.solved_at for each in kept.sets}
        self._out = out
        self.kept = kept
        self._models = ServedModels(client, directory, self._save)

    def _save(self, kept: Definition) -> None:
        self.kept = kept
        definition.write(self._directory, kept)

    async def run(self) -> None:
        """Returns when each sample has ended. Raises `ServiceError`, and `ModelChanged` where samples of another model
        would be among them.
        """
        whole = [each for each in self.kept.submitted if self._whole(each)]
        open_ = [each for each in self.kept.submitted if not self._whole(each)]
        progress = self._progress(sum(map(self._left, open_)))
        async with progress.shown():
            if open_:
                await self._models.check(self.kept)
                await self._follow(open_, progress)
            new = list(self._new())
            if new:
                await self._models.check(self.kept)
                self._say(new)
                progress.wanted = progress.ended + sum(n for each in new for _, n in each.groups.values())
                await asyncio.to_thread(
                    self._save, msgspec.structs.replace(self.kept, submitted=[*self.kept.submitted, *new])
                )
                progress.sets = self._names()
                await self._follow(new, progress, new=True)
            await self._acknowledge(whole)

    def _say(self, new: Sequence[Submitted]) -> None:
        count = sum(n for each in new for _, n in each.groups.values())
        wanted = sum(each.n * len(each.tasks) for each in self.kept.sets)
        print(f"{count} of {wanted} samples are to be made, in run {self.kept.run_id}", file=sys.stderr)

    def _progress(self, wanted: int) -> EvaluationProgress:
        return EvaluationProgress(wanted, self._solved_at, self._names())

    def _names(self) -> dict[str, str]:
        return {group: name for group, (name, _) in samples.groups(self.kept.submitted).items()}

    def _at(self, group_id: str) -> tuple[str, str]:
        return self.kept.run_id, group_id

    def _left(self, each: Submitted) -> int:
        """The samples of a batch whose groups are not in the file."""
        return sum(n for name, (_, n) in each.groups.items() if not self._out.has(*self._at(name)))

    def _whole(self, each: Submitted) -> bool:
        return all(self._out.has(*self._at(name)) for name in each.groups)

    async def _follow(self, parts: Sequence[Submitted], progress: EvaluationProgress, *, new: bool = False) -> None:
        """Writes the groups of batches until they are closed."""
        try:
            async with asyncio.TaskGroup() as group:
                watch = group.create_task(self._models.watch(lambda: self.kept))
                async with asyncio.TaskGroup() as following:
                    for each in parts:
                        following.create_task(self._follow_one(each, progress, new=new))
                watch.cancel()
        except ExceptionGroup as faults:
            raise _first(faults) from None
        await self._models.look(self.kept)

    async def _follow_one(self, each: Submitted, progress: EvaluationProgress, *, new: bool) -> None:
        """A batch that the service does not know was never submitted, unless a sample of it has come back: then the
        service has lost it, and what is missing of it is made under another name, by this start or an earlier one.
        """
        request = _request(self.kept, self._sets[each.set], each)
        begun = any(self._out.has_some(*self._at(name)) for name in each.groups)
        if begun and not new and not await self._known(request):
            progress.wanted -= self._left(each)
            return
        await self._client.submit(request)
        there = {name for name in each.groups if self._out.has(*self._at(name))}
        await collect(
            self._client,
            request,
            self._out,
            lambda closed: None if closed.record.group_id in there else progress.add(closed.record),
        )

    async def _known(self, request: BatchRequest) -> bool:
        try:
            await self._client.batch(f"{request.run_id}:{request.batch_id}")
        except ServiceError as error:
            if error.status == NOT_THERE:
                return False
            raise
        return True

    async def _acknowledge(self, whole: Sequence[Submitted]) -> None:
        """Acknowledges groups that are on the disk, and that a killed start did not acknowledge."""
        for each in whole:
            request = _request(self.kept, self._sets[each.set], each)
            if await self._known(request):
                await collect(self._client, request, self._out, lambda _: None)

    def _new(self) -> Iterator[Submitted]:
        """Batches of everything that is missing: of tasks with fewer results than the suite wants."""
        scored: Counter[tuple[str, int]] = Counter()
        for placed in samples.read(self._directory, self.kept):
            scored[placed.set, placed.task] += placed.sample.reward is not None
        rounds = Counter({each.set: each.round + 1 for each in self.kept.submitted})
        for kept in self.kept.sets:
            missing = {place: kept.n - scored[kept.name, place] for place in range(len(kept.tasks))}
            wanted = {place: number for place, number in missing.items() if number > 0}
            for part, places in enumerate(_parts(self._sets[kept.name], list(wanted))):
                yield _submitted(kept, rounds[kept.name], part, {place: wanted[place] for place in places})


def _first(fault: Exception) -> Exception:
    return _first(fault.exceptions[0]) if isinstance(fault, ExceptionGroup) else fault


def _submitted(kept: KeptSet, number: int, part: int, wanted: Mapping[int, int]) -> Submitted:
    return Submitted(
        batch_id=f"{kept.name}.{number}.{part}",
        set=kept.name,
        round=number,
        groups={f"{kept.name}.{number}-{place}": (place, n) for place, n in wanted.items()},
    )


def _parts(loaded: LoadedSet, places: Sequence[int]) -> Iterator[list[int]]:
    """Places of tasks, as many together as the API takes in one batch."""
    part: list[int] = []
    size = 0
    for place in places:
        length = len(msgspec.json.encode(loaded.tasks[place]))
        if part and (size + length > PART_BYTES or len(part) == PART_GROUPS):
            yield part
            part, size = [], 0
        part.append(place)
        size += length
    if part:
        yield part


def _request(kept: Definition, loaded: LoadedSet, each: Submitted) -> BatchRequest:
    """The batch as it is submitted, the same at each start."""
    sampling = loaded.sampling
    if sampling.seed is not None and each.round:  # indexes begin at 0 again, and the seed of a sample follows from them
        sampling = msgspec.structs.replace(sampling, seed=(sampling.seed + each.round * SEED_STEP) % SEEDS)
    return BatchRequest(
        run_id=kept.run_id,
        batch_id=each.batch_id,
        groups=[
            GroupRequest(task=loaded.tasks[place], n=n, group_id=name, max_refills=0)
            for name, (place, n) in each.groups.items()
        ],
        sampling=sampling,
        limits=loaded.limits,
        pool=kept.pool,
        tools=loaded.about.tools,
        purpose=Purpose.EVAL,
        priority=kept.priority,
    )


async def check_pool(client: AsyncClient, pool: str) -> None:
    """Raises `ConfigurationError` for a pool without a backend: its jobs would wait for one until they expire."""
    try:
        there = bool((await client.policy(pool)).backends)
    except ServiceError as error:
        if error.status != NOT_THERE:
            raise
        there = False
    if not there:
        raise ConfigurationError(
            f"pool {pool!r} has no backend: name another with --pool, or add one with client.add_backend({pool!r}, URL)"
        )
