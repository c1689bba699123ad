"""`prorl-mq record`: a trace of runs for the simulation of routing, from results that wait and from the archive."""

import argparse
import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import IO, Final

import msgspec

from prorl_mq.archive.shelf import Shelf
from prorl_mq.archive.table import WholeGroup
from prorl_mq.cli.looking import service_redis
from prorl_mq.converters.routing_trace import Salted, TraceHead, session
from prorl_mq.errors import ConfigurationError, PayloadUnavailable, ProrlError
from prorl_mq.schema.codec import decode, unpack_trajectory
from prorl_mq.schema.ids import DEFAULT_TENANT, RunRef, run_ref, tenant_of
from prorl_mq.schema.messages import GroupRecord, Stage
from prorl_mq.schema.trajectory import Trajectory
from prorl_mq.store import results, runs
from prorl_mq.store.payloads import reading
from prorl_mq.store.server.faults import RedisError
from prorl_mq.store.store import Store

FAULTS = (ProrlError,)
AT_ONCE: Final = 8  # groups of one look at a run's results
CLAIM: Final = "claim"  # the event of a time line at which a stage begins


async def run(given: argparse.Namespace) -> int:
    """Raises `ConfigurationError`, also for a run that nobody knows: then no file is left."""
    if (given.run is None) != given.all:
        raise ConfigurationError("say what to record: one run, or --all: prorl-mq record RUN --out FILE")
    if await asyncio.to_thread(given.out.exists):
        raise ConfigurationError(f"{given.out} already exists: remove it, or choose another --out")
    try:
        async with service_redis(given) as store:
            print(await recorded(store, given.run, given.out))
    except (RedisError, OSError) as error:
        raise ConfigurationError(f"the record was cut short: {error}; nothing is in {given.out}; try again") from None
    return 0


class TraceFile:
    """One file under way. It holds one group at a time."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._salted = Salted(secrets.token_bytes(32))
        self._origin_ms: int | None = None
        self.sessions = self.without = 0
        file.write(msgspec.json.encode(TraceHead()) + b"\n")

    def add(self, record: GroupRecord, trajectories: dict[str, Trajectory]) -> None:
        """Writes the samples of a group. One that the policy said nothing in is counted as `without`."""
        for sample in record.samples:
            trajectory = trajectories.get(sample.job_id)
            made = trajectory and session(
                self._salted,
                trajectory,
                run=record.run_id,
                group=record.group_id,
                sample=sample.index,
                began_s=self._began_s(record.timelines.get(sample.job_id, "")),
                outcome=sample.outcome,
            )
            if made:
                self._file.write(msgspec.json.encode(made) + b"\n")
            self.sessions += bool(made)
            self.without += not made

    def _began_s(self, line: str) -> float | None:
        began = began_ms(line)
        if began is None:
            return None
        if self._origin_ms is None:
            self._origin_ms = began
        return (began - self._origin_ms) / 1000


def began_ms(line: str) -> int | None:
    """The moment at which a job's last attempt of RUN began, by its time line."""
    events = [part.split("\t") for part in line.splitlines()]
    claims = [parts[0] for parts in events if len(parts) > 2 and parts[1] == CLAIM and parts[2] == Stage.RUN]
    return int(claims[-1]) if claims and claims[-1].isdecimal() else None


async def recorded(store: Store, name: str | None, out: Path) -> str:
    """Says what has been written. The file appears when it is complete."""
    part = out.with_name(f".{out.name}.part")
    shelf = Shelf(store.archive, store.keys.namespace) if store.archive is not None else None
    damaged = list[str]()
    try:
        with await asyncio.to_thread(part.open, "wb") as file:
            recording = TraceFile(file)
            async for record, trajectories in _groups(store, shelf, name, damaged):
                await asyncio.to_thread(recording.add, record, trajectories)
        if not recording.sessions:
            raise ConfigurationError(_nothing(name, recording.without, damaged))
        await asyncio.to_thread(part.replace, out)
    finally:
        await asyncio.to_thread(part.unlink, missing_ok=True)
    said = f"{recording.sessions} samples are in {out}"
    if recording.without:
        said += f"; {recording.without} without a turn of the policy are not"
    if damaged:
        said += f"; what {len(damaged)} places hold could not be read ({damaged[0]})"
    return said


async def _groups(
    store: Store, shelf: Shelf | None, name: str | None, damaged: list[str]
) -> AsyncIterator[tuple[GroupRecord, dict[str, Trajectory]]]:
    """The archive's groups first: they are older than those that wait for their trainer."""
    wanted = None if name is None else _ref(name)
    if shelf is not None and await asyncio.to_thread(lambda: shelf.there):
        for each in await asyncio.to_thread(shelf.runs):
            if wanted in {None, run_ref(each.tenant, each.run)}:
                kept = shelf.whole(each.tenant, each.run, lambda fault: damaged.append(str(fault)))
                async for group in _in_thread(kept):
                    yield group.record, dict(group.trajectories)
    for ref in [wanted] if wanted else await runs.known(store):
        async for record in _waiting(store, ref):
            yield record, await _trajectories(store, ref, record, damaged)


async def _waiting(store: Store, ref: RunRef) -> AsyncIterator[GroupRecord]:
    """A run's groups that its trainer has not acknowledged."""
    after = "0"
    while True:
        found, after = await results.page(store, ref, after=after, limit=AT_ONCE)
        if not found:
            return
        for each in found:
            if not each.of_batch:
                yield decode(each.record, GroupRecord)


async def _trajectories(store: Store, ref: RunRef, record: GroupRecord, damaged: list[str]) -> dict[str, Trajectory]:
    found: dict[str, Trajectory] = {}
    for sample in record.samples:
        if sample.trajectory is None:
            continue
        try:
            data = await reading.get(store, tenant_of(ref), sample.trajectory)
            if data is not None:  # acknowledged a moment ago: the archive has it, or nobody
                found[sample.job_id] = await unpack_trajectory(data)
        except (PayloadUnavailable, msgspec.DecodeError) as error:
            damaged.append(f"{sample.job_id}: {error}")
    return found


async def _in_thread(groups: Iterator[WholeGroup]) -> AsyncIterator[WholeGroup]:
    while True:
        group = await asyncio.to_thread(next, groups, None)
        if group is None:
            return
        yield group


def _ref(name: str) -> RunRef:
    tenant, _, run = name.rpartition(":")
    return run_ref(tenant or DEFAULT_TENANT, run)


def _nothing(name: str | None, without: int, damaged: list[str]) -> str:
    what = f"run {name!r} has" if name else "there is"
    told = f"{what} no sample with a trajectory, waiting or in the archive"
    if without:
        told += f" ({without} samples have none)"
    if damaged:
        return f"{told}; {len(damaged)} places could not be read: {damaged[0]}"
    return f"{told}; what was acknowledged without an archive is gone: see docs/howto/archive.md"
