"""One look at everything that a namespace holds, and a judgement of what two looks agree on."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeVar

import msgspec

from prorl_mq.schema.ids import RunRef
from prorl_mq.service.fsck import groups as group_rules
from prorl_mq.service.fsck import jobs as job_rules
from prorl_mq.service.fsck import payloads
from prorl_mq.service.fsck import results as result_rules
from prorl_mq.service.fsck.payloads import NamedPayload
from prorl_mq.service.fsck.violations import Violation
from prorl_mq.store.audit import archive as archives
from prorl_mq.store.audit import groups, jobs, moment, results
from prorl_mq.store.audit.reads import STREAM, Key, Reads, keys_of, misread, settled, without_owner
from prorl_mq.store.layout.keys import GROUP
from prorl_mq.store.payloads.files import PayloadFiles

T = TypeVar("T")
WITH_GROUPS: Final = frozenset({"groups", "backlog", "reservoir", "drawn", "parked", "carried"})


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Findings of a look. `not_judged` names what stood still at no moment, or was too large for a busy server."""

    violations: Sequence[Violation]
    keys: int
    groups: int  # open ones
    jobs: int  # that have not ended
    due: int  # groups whose verdict is due
    results: int  # records and reports that are not acknowledged
    not_judged: Sequence[str] = ()

    @property
    def idle(self) -> bool:
        """True if no work is open and every result was acknowledged."""
        return not (self.groups or self.jobs or self.due or self.results)


async def look(reads: Reads, *, still: bool = False, files: PayloadFiles | None = None) -> Report:
    """One look. `still`: nothing else uses the server, so that no read needs a limit; `files`: payloads beside it."""
    return await _Look(reads, still=still, files=files).all()


async def judge(reads: Reads, *, apart_s: float, files: PayloadFiles | None = None) -> Report:
    """Two looks at a live server: what the second one sees as the first did."""
    first = await look(reads, files=files)
    if not first.violations:
        return first
    await asyncio.sleep(apart_s)
    second = await look(reads, files=files)
    before = set(first.violations)
    return msgspec.structs.replace(second, violations=[each for each in second.violations if each in before])


class _Look:
    """State of one look."""

    def __init__(self, reads: Reads, *, still: bool, files: PayloadFiles | None) -> None:
        self._reads = reads
        self._files = files
        self._named: list[NamedPayload] = []
        self._still = still
        self._found: dict[Violation, None] = {}
        self._counts: Counter[str] = Counter()
        self._holders: dict[str, str] = {}
        self._not_judged: list[str] = []

    async def all(self) -> Report:
        reads = self._reads
        names = reads.keys
        self._due = await self._read(names.due, groups.due(reads)) or set()
        self._schemas = await self._read(names.schemas, groups.schemas(reads)) or {}
        self._streams = await self._read(names.lanes, jobs.stage_streams(reads)) or frozenset()
        archive = await self._read(names.archive_state, archives.look(reads))
        self._archiving = archive.named if archive else frozenset[str]()
        runs = await self._read(names.unacked, results.with_unacked(reads)) or set()
        async for page in keys_of(reads):
            fitting = await settled(reads, [key for key in page if key.fits])
            await self._page(fitting)
            self._add(group_rules.stranger(key) for key in page if not key.fits)
            runs |= {key.rest for key in fitting if key.kind == "results"}
            self._counts["keys"] += len(page)
        for run in sorted(runs):
            key = Key(names.results(RunRef(run)), "results", run, STREAM, -1)
            await self._each(self._results, [key])
        await self._read(names.in_flight, self._moment())
        if archive is not None:
            self._add(result_rules.archiving(archive, names))
        await self._payloads()
        counts = self._counts
        return Report(
            violations=list(self._found), keys=counts["keys"], groups=counts["groups"], jobs=counts["jobs"],
            due=len(self._due), results=counts["results"], not_judged=self._not_judged,
        )  # fmt: skip

    def _add(self, found: Iterable[Violation]) -> None:
        self._found |= dict.fromkeys(found)

    async def _page(self, page: Sequence[Key]) -> None:
        kinds: dict[str, list[Key]] = {}
        for key in page:
            kinds.setdefault(key.kind, []).append(key)
        await self._each(self._jobs, kinds.get("job", []))
        await self._each(self._groups, kinds.get("group", []))
        await self._each(self._batches, kinds.get("batch", []))
        await self._each(self._blobs, [key for key in kinds.get("blob", []) if key.ttl_ms < 0])
        for key in page:
            if key.kind in WITH_GROUPS:
                await self._each(self._members, [key])
            elif key.kind == "stage":
                await self._each(self._stream, [key])
        await self._each(self._unowned, page)

    async def _read(self, key: str, reading: Awaitable[T]) -> T | None:
        """None where what the key holds cannot be read, which is a violation."""
        try:
            return await reading
        except Exception as error:
            if not misread(error):
                raise
            self._add([group_rules.misread(key, error)])
            return None

    async def _each(self, judged: Callable[[Sequence[Key]], Awaitable[None]], keys: Sequence[Key]) -> None:
        """Keys together; where one of them cannot be read, each alone."""
        if len(keys) > 1:
            try:
                await judged(keys)
            except Exception as error:
                if not misread(error):
                    raise
                for key in keys:
                    await self._each(judged, [key])
        elif keys:
            await self._read(keys[0].name, judged(keys))

    async def _batches(self, keys: Sequence[Key]) -> None:
        for facts in await groups.batches(self._reads, keys):
            self._add(group_rules.batch(facts))

    async def _blobs(self, keys: Sequence[Key]) -> None:
        for owner in await results.owners(self._reads, keys):
            self._add(result_rules.kept(owner, self._archiving))

    async def _unowned(self, keys: Sequence[Key]) -> None:
        self._add(group_rules.unowned(key) for key in await without_owner(self._reads, keys))

    async def _jobs(self, keys: Sequence[Key]) -> None:
        for facts in await jobs.of_keys(self._reads, keys, self._streams):
            self._counts["jobs"] += facts.text("state") != "done"
            self._add(job_rules.job(facts, self._reads.keys))
            self._named += payloads.of_job(facts)
            self._add(job_rules.tokens(facts, self._holders))

    async def _groups(self, keys: Sequence[Key]) -> None:
        for facts in await groups.of_keys(self._reads, keys, self._due, self._schemas):
            self._counts["groups"] += not facts.text("cursor")
            self._add(group_rules.group(facts))

    async def _members(self, keys: Sequence[Key]) -> None:
        [key] = keys
        ending = key.kind != "carried" or await groups.carries(self._reads, RunRef(key.rest))
        async for page in groups.members(self._reads, key):
            for facts in page:
                self._add(group_rules.member(facts, ending=ending))

    async def _stream(self, keys: Sequence[Key]) -> None:
        [key] = keys
        if key.name not in self._streams:
            what = f"no consumer group {GROUP!r} reads it, or its node has no lane"
            self._add([Violation(26, key.name, what, "start a worker of the stage, or UNLINK it if it is empty")])
            return
        async for page in jobs.on_stream(self._reads, key.name):
            for facts in page:
                self._add(job_rules.entry(facts))
        async for deleted in jobs.unread_nothing(self._reads, key.name):
            self._add(job_rules.unread(key.name, entry) for entry in deleted)

    async def _results(self, keys: Sequence[Key]) -> None:
        """A run's results, with the counts of them."""
        [key] = keys
        reads, run = self._reads, RunRef(key.rest)
        epoch = await results.epoch(reads, run)
        before = await results.held(reads, run)
        size = admitted = 0
        async for records, reports in results.of_run(reads, key):
            self._counts["results"] += len(records) + len(reports)
            for record in records:
                self._add(result_rules.published(record))
                self._named += payloads.of_record(record)
                size += record.bytes
                admitted += bool(record.record.samples)
            for report in reports:
                self._add(result_rules.reported(report))
                size += report.bytes
        begun = await groups.begun(reads, run)
        after = await results.held(reads, run)
        self._add(result_rules.newest(key.name, after.newest, epoch))
        self._add(result_rules.counts(run, reads.keys, before, after, groups=admitted + begun, size=size))

    async def _payloads(self) -> None:
        files = self._files
        if files is not None and await asyncio.to_thread(lambda: files.there):
            self._add([each async for each in payloads.violations(self._reads, files, self._named)])
        elif self._named:
            self._not_judged.append(f"{len(self._named)} payloads in files: this process sees no directory of them")

    async def _moment(self) -> None:
        limit = None if self._still else moment.AT_MOST
        found = await moment.look(self._reads, at_most=limit)
        if found is None:
            self._not_judged.append("counts of jobs in flight: too many for one moment; look at a copy")
        else:
            self._add(result_rules.flying(found, self._reads.keys))
