"""Large checkpoints in files: named by their job alone, let go in time, and never in the way of what must be kept."""

import os
import random
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from prorl_mq.duties.reap import decide
from prorl_mq.schema.codec import decode, encode
from prorl_mq.schema.faults import Cause
from prorl_mq.schema.ids import JobRef, batch_ref, group_of, group_ref, public
from prorl_mq.schema.items import Advance, Fail, Finish, Held, Logged, NewBatch, NewFork, NewGroup
from prorl_mq.schema.lifecycle import State, Verb
from prorl_mq.schema.messages import Outcome, SampleRecord, Stage, events
from prorl_mq.schema.trajectory import ForkedFrom
from prorl_mq.schema.turns import CHECKPOINT, Archive, Checkpoint
from prorl_mq.service import payload_files
from prorl_mq.service.cancel import cancel
from prorl_mq.service.fsck.look import look
from prorl_mq.service.fsck.payloads import NUMBER
from prorl_mq.store import jobs
from prorl_mq.store.payloads import checkpoints, marks, reading
from prorl_mq.store.payloads.checkpoints import CheckpointArchives, CheckpointSkipped
from prorl_mq.store.payloads.files import PayloadFiles
from prorl_mq.store.payloads.limits import REDIS_BYTES, SMALL_BYTES
from prorl_mq.store.payloads.name import PayloadFile, named_file
from prorl_mq.store.server.connection import RedisSettings
from sandbox.errors import SandboxUnavailable
from sandbox.fake import FakeSandbox
from sandbox.isolators.kinds import make_provider
from sandbox.protocol import SandboxSpec
from tests.payloads.conftest import TENANT, age, under
from tests.payloads.test_collect import collected, put
from tests.payloads.test_stages import acted, count
from tests.pool.test_stages import claimed
from tests.support.queue import RUN, Queue, spec
from tests.worker.test_turn_logs import Place, Turns, lost
from workers.handler import Ran, Run, Score
from workers.stages import job_log
from workers.stages.eval import EvalStage
from workers.stages.registry import Registry

pytestmark = pytest.mark.anyio
STATE = random.Random(1).randbytes(SMALL_BYTES + 1)


class Large(Turns):
    """Its sandbox has a large state behind each turn."""

    async def run(self, context: Run) -> Ran:
        assert context.sandbox is not None
        self.saves = True
        if context.log is not None and not context.log.before:
            await context.sandbox.write_file("/state", STATE)
        return await super().run(context)


@pytest.fixture
async def place(queue: Queue, settings: RedisSettings) -> Place:
    found = Place(queue, settings)
    found.family = Large()
    await found.prepare()
    return found


async def finished(place: Place) -> dict[str, bytes]:
    """The job continues in the new sandbox that INIT has made, and RUN ends; the sandbox's files, once it has begun."""
    place.family.ends.clear()
    place.family.go.set()
    async with place.worker("w3"):
        await place.waiting(4)
        [box] = place.provider.alive.values()
        files = dict(box.files)
        place.family.ends.set()
        await place.at(Stage.EVAL)
    return files


async def name_of(place: Place) -> PayloadFile:
    """The file that the job names."""
    archive, name = await jobs.saved(place.queue.store, place.ref)
    assert len(archive) < 200, "Redis has none of it"
    file = named_file(name)
    assert file is not None
    return file


async def told(place: Place) -> list[str]:
    return [each.detail for each in events(place.ref, await jobs.timeline(place.queue.store, place.ref))]


async def test_a_new_sandbox_begins_with_a_large_checkpoint(place: Place, files: PayloadFiles) -> None:
    in_file = count("prorl_checkpoint_bytes_total", place="file")
    await lost(place)
    file = await name_of(place)
    assert in_file() > len(STATE)
    begun = await finished(place)
    assert (begun["/state"], begun["/steps"]) == (STATE, b"0")
    assert place.family.restored == [-1, 0]
    assert await jobs.saved(place.queue.store, place.ref) == (b"", "")
    age(files, file)
    await collected(place.queue, files)
    assert not files.path(TENANT, file).exists()


class Scores(Large):
    """Its EVAL makes a sandbox; `leaks`: and fills it with what RUN's had."""

    def __init__(self, *, leaks: bool) -> None:
        super().__init__()
        self.leaks = leaks

    async def eval(self, context: Any) -> Score:
        box = await context.sandbox()
        if self.leaks:
            await box.mark()
            await box.restore(msgspec.msgpack.encode(([("/state", STATE)], [])))
        return Score(reward=float("/state" in box.files))


@pytest.mark.parametrize("leaks", [False, True])
async def test_evals_sandbox_gets_no_checkpoint_and_gives_none(
    place: Place, files: PayloadFiles, monkeypatch: pytest.MonkeyPatch, leaks: bool
) -> None:
    """What an agent has left would score itself. The control, a scorer that restores it, is noticed."""
    place.family = Scores(leaks=leaks)
    await lost(place)
    await name_of(place)
    await finished(place)
    assert await jobs.saved(place.queue.store, place.ref) == (b"", ""), "its job names none when EVAL begins"
    touched: list[str] = []
    for name in ("mark", "save", "restore"):
        monkeypatch.setattr(FakeSandbox, name, _noting(touched, name))
    stage = EvalStage(Registry([place.family]), place.provider, place.queue.store)
    ended = (await stage.perform(await claimed(place.queue, Stage.EVAL))).item
    assert isinstance(ended, Finish)
    assert decode(ended.record, SampleRecord).reward == float(leaks)
    assert touched == (["mark", "restore"] if leaks else [])


def _noting(touched: list[str], name: str) -> Any:
    done = getattr(FakeSandbox, name)

    async def noted(box: FakeSandbox, *given: Any, **more: Any) -> Any:
        touched.append(name)
        return await done(box, *given, **more)

    return noted


async def test_without_a_directory_all_calls_are_made_again(place: Place, files: PayloadFiles) -> None:
    files.directory.rmdir()
    unsaved = count("prorl_checkpoints_unsaved_total")
    await lost(place)
    assert await jobs.saved(place.queue.store, place.ref) == (b"", "")
    await finished(place)
    assert place.family.restored == [-1, -1]
    assert unsaved() >= 1


async def test_where_its_file_is_gone_all_calls_are_made_again_and_the_time_line_says_why(
    place: Place, files: PayloadFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the same attempt: nothing has touched the sandbox."""
    monkeypatch.setattr(reading.get, "__kwdefaults__", {"within_s": 0.1})
    await lost(place)
    path = files.path(TENANT, await name_of(place))
    path.unlink()
    begun = await finished(place)
    assert "/state" not in begun
    assert (place.family.rebuilt, place.family.restored) == ([False, True], [-1, -1])
    assert any(f"the checkpoint of turn 0 is not used: the payload {path}"[:150] in each for each in await told(place))


async def test_a_small_one_that_an_older_release_has_written_counts_before_a_files_name(
    place: Place, files: PayloadFiles
) -> None:
    """Its script writes the archive, and leaves the name of the file that was there before."""
    await lost(place)
    digest = decode((await jobs.saved(place.queue.store, place.ref))[0], Archive).digest
    data = msgspec.msgpack.encode(([("/state", STATE), ("/steps", b"0")], []))
    await place.queue.command(
        "HSET", place.queue.keys.job(place.ref), "saved", encode(Archive(digest, data)), "saved_in",
        str(files.write(TENANT, b"older")),
    )  # fmt: skip
    assert (await finished(place))["/state"] == STATE
    assert place.family.restored == [-1, 0]


async def test_a_file_that_a_network_file_system_shows_late_is_waited_for(
    place: Place, files: PayloadFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lost(place)
    path = files.path(TENANT, await name_of(place))
    aside = path.rename(path.with_name("late"))
    looks = []

    def looked(self: PayloadFiles, tenant: str, name: PayloadFile, *, again: bool = False) -> bytes:
        looks.append(again)
        if again:
            aside.replace(path)
        return read(self, tenant, name, again=again)

    read = PayloadFiles.read
    monkeypatch.setattr(PayloadFiles, "read", looked)
    await finished(place)
    assert (looks, place.family.restored) == ([False, True], [-1, 0])


async def newer(place: Place) -> None:
    """The log of the job ends within turn 1, of which a checkpoint is noted."""
    await lost(place)
    key = place.queue.keys.job(place.ref)
    noted = [number for number, each in enumerate(await place.log()) if each[:1] == CHECKPOINT]
    point = decode((await place.log())[noted[-1]][1:], Checkpoint)
    later = CHECKPOINT + encode(Checkpoint(1, point.digest))
    await place.queue.command("HSET", key, f"log:{noted[-1]}", later)


async def test_a_checkpoint_that_is_newer_than_the_log_is_not_used(place: Place) -> None:
    """Its sandbox has results that the policy will not see: its turn is answered again."""
    await newer(place)
    assert "/state" not in await finished(place)
    assert place.family.restored == [-1, -1]


async def test_without_that_guard_it_would_be_used(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""
    monkeypatch.setattr(job_log, "usable", lambda *_: True)
    await newer(place)
    assert "/state" in await finished(place)
    assert place.family.restored == [-1, 1]


async def test_a_real_sandbox_becomes_the_saved_one_by_way_of_a_file(queue: Queue, files: PayloadFiles) -> None:
    """As on another node: what is restored is what was written, of files and of the shell."""
    archives, ref = CheckpointArchives(queue.store), JobRef("acme:r:g:0")
    with tempfile.TemporaryDirectory(prefix="pq") as directory:
        Path(directory).chmod(0o755)  # noqa: ASYNC240 - nothing else runs
        provider = make_provider("bubblewrap", node="n1", state_dir=Path(directory), tools_dir=None, python_dir=None)
        try:
            one, other = [await provider.create(SandboxSpec(owner=f"job:{number}")) for number in range(2)]
        except SandboxUnavailable as missing:
            pytest.skip(str(missing))
        try:
            for box in (one, other):
                assert list(await box.mark()) == []
            await one.write_file("/workspace/state", STATE)
            await one.bash("cd /workspace; export WALKED=far")
            saved = await one.save()
            assert saved.data is not None
            kept = await archives.put(ref, saved.data)
            assert len(under(files.directory)) == 1
            await other.restore(await archives.get(ref, kept.file))
            assert await other.read_file("/workspace/state") == STATE
            assert (await other.bash("echo $PWD $WALKED")).output.strip() == "/workspace far"
        finally:
            for box in (one, other):
                await box.close()
            await provider.aclose()


# Their names


async def saved(queue: Queue, archives: CheckpointArchives, held: Held, at: int = 0) -> PayloadFile:
    """A job in RUN that names a large checkpoint, which was written long ago."""
    name = (await archives.put(held.ref, STATE)).file
    assert await queue.store.log([Logged(held, at, b"note", b"archive", "", name)]) == ["logged"]
    file = named_file(name)
    assert file is not None
    assert queue.store.payloads is not None
    age(queue.store.payloads, file)
    return file


async def test_it_is_kept_for_as_long_as_its_job_names_it(queue: Queue, files: PayloadFiles) -> None:
    """Through the death of its worker, the loss of its node, and the wait for another INIT."""
    held = await queue.hold(Stage.RUN)
    archives = CheckpointArchives(queue.store)
    first = await saved(queue, archives, held)
    await collected(queue, files)
    assert files.fault(TENANT, first) == ""
    assert await archives.get(held.ref, str(first)) == STATE
    second = await saved(queue, archives, held, 1)
    await queue.fail(held)
    await collected(queue, files)
    assert files.fault(TENANT, second) == ""
    assert not files.path(TENANT, first).exists(), "the job names another one"


async def test_a_walk_that_asks_for_trajectories_alone_would_collect_it(
    queue: Queue, files: PayloadFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""

    async def of_jobs(reads: Any, keys: Any) -> Any:
        rows = await reads.read_many([("HGET", key, "trajectory") for key in keys])
        yield [(key, row) for key, row in zip(keys, rows, strict=True) if row]

    monkeypatch.setattr(marks, "ORDER", (("job", 256, of_jobs), *marks.ORDER[1:]))
    file = await saved(queue, CheckpointArchives(queue.store), await queue.hold(Stage.RUN))
    await collected(queue, files)
    assert not files.path(TENANT, file).exists()


async def _advances(queue: Queue, held: Held) -> None:
    await queue.store.advance([Advance(held, None, b"")])


async def _finishes(queue: Queue, held: Held) -> None:
    await queue.finish(held, Outcome.INFRA_ERROR)


async def _begins_again(queue: Queue, held: Held) -> None:
    await queue.store.fail([Fail(held, Stage.INIT, 60_000, "differs", forgets=True)])


async def _gives_up(queue: Queue, held: Held) -> None:
    await queue.store.log([Logged(held, 0, None)])


async def _cancelled(queue: Queue, held: Held) -> None:
    await cancel(queue.store, "job", held.ref)
    await queue.store.confirm(held, encode(SampleRecord(job_id="acme:r:g:0", index=0, outcome=Outcome.CANCELLED)))


async def _dies_too_often(queue: Queue, held: Held) -> None:
    for _ in range(20):
        await queue.overdue(held.ref)
        state, item = decide(await queue.snapshot(held.ref), spec(), leased=True)
        await queue.store.reap(Verb.REAP, state, [item])
        if (await queue.snapshot(held.ref)).state == State.DONE:
            return
        stages = (Stage.RUN, Stage.INIT)
        [held] = [held for stage in stages for front in (True, False) for held in await queue.take(stage, front=front)]


@pytest.mark.parametrize("end", [_advances, _finishes, _begins_again, _gives_up, _cancelled, _dies_too_often])
async def test_however_its_log_ends_nothing_is_left_of_it(
    queue: Queue, files: PayloadFiles, end: Callable[[Queue, Held], Awaitable[None]]
) -> None:
    held = await queue.hold(Stage.RUN)
    file = await saved(queue, CheckpointArchives(queue.store), held)
    await end(queue, held)
    assert await jobs.saved(queue.store, held.ref) == (b"", "")
    await collected(queue, files)
    assert not files.path(TENANT, file).exists()


async def test_a_replaced_one_is_removed_once_redis_cannot_lose_its_successors_name(
    queue: Queue, files: PayloadFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before that: a lost second names it again."""
    archives, ref = CheckpointArchives(queue.store), (await queue.hold(Stage.RUN)).ref
    first = named_file((await archives.put(ref, STATE)).file)
    assert first is not None
    archives.let_go(ref, str(first))
    second = named_file((await archives.put(ref, STATE)).file)
    assert second != first, "two of the same content are two files: another job may name one"
    assert files.fault(TENANT, first) == ""
    monkeypatch.setattr(checkpoints, "SETTLED_S", 0.0)
    await archives.put(ref, STATE)
    assert not files.path(TENANT, first).exists()
    assert second is not None
    assert files.fault(TENANT, second) == ""


@pytest.mark.parametrize("forked", [True, False])
async def test_one_that_a_fork_may_name_is_left_to_the_collection(
    queue: Queue, files: PayloadFiles, monkeypatch: pytest.MonkeyPatch, *, forked: bool
) -> None:
    """Without the mark that a fork leaves, the control, the worker removes it."""
    held = await queue.hold(Stage.RUN)
    archives = CheckpointArchives(queue.store)
    file = await saved(queue, archives, held)
    if forked:
        told = spec("tree", fork=ForkedFrom(job_id=public(held.ref), turn=0))
        group = NewGroup(group_ref(RUN, "tree"), "d", 1, 60_000, encode(told), b"", told.data_source)
        lends = NewFork(b"turns", held.ref, b"", str(file), queue.keys.job(held.ref), group_of(held.ref))
        assert await queue.store.fork(NewBatch(RUN, batch_ref(RUN, "tree"), "d", 1, 1), group, lends) == "forked"
    monkeypatch.setattr(checkpoints, "SETTLED_S", 0.0)
    archives.let_go(held.ref, str(file))
    await archives.put(held.ref, STATE)
    assert files.path(TENANT, file).exists() == forked
    if forked:
        await _finishes(queue, held)
        await collected(queue, files)
        assert files.path(TENANT, file).exists(), "its parent has ended, and the fork has not begun"
        await queue.command("UNLINK", queue.keys.fork(group_ref(RUN, "tree")))
        await collected(queue, files)
        assert not files.path(TENANT, file).exists()


async def test_another_tenants_job_cannot_read_it(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading.get, "__kwdefaults__", {"within_s": 0.1})
    archives = CheckpointArchives(queue.store)
    name = (await archives.put(JobRef("acme:r:g:0"), STATE)).file
    with pytest.raises(Exception, match="cannot be read"):
        await archives.get(JobRef("other:r:g:0"), name)


async def test_fsck_names_one_that_is_missing_and_none_that_a_job_names(queue: Queue, files: PayloadFiles) -> None:
    held = await queue.hold(Stage.RUN)
    file = await saved(queue, CheckpointArchives(queue.store), held)
    age(files, file, seconds=10 * 3600)

    async def found() -> list[str]:
        violations = (await look(queue.store, files=files)).violations
        return [each.what for each in violations if each.number == NUMBER]

    assert await found() == []
    files.path(TENANT, file).unlink()
    [what] = await found()
    assert "the checkpoint of the job acme:r:g:0 names" in what


# A disk that is full


class _Full:
    """As `os.statvfs` says of 100 GiB with one per cent left."""

    f_frsize, f_blocks, f_bavail = 1 << 20, 100 << 10, 1 << 10


async def test_a_checkpoint_leaves_the_last_room_to_trajectories(
    queue: Queue, files: PayloadFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "no checkpoints are written" not in await payload_files.told(files)
    assert await payload_files.fault(files) == ""
    monkeypatch.setattr(os, "statvfs", lambda _: _Full())
    archives = CheckpointArchives(queue.store)
    with pytest.raises(CheckpointSkipped, match=f"{files.directory} is almost full: 1.0 of 100.0 GiB are free"):
        await archives.put(JobRef("acme:r:g:0"), STATE)
    assert "1.0 of 100.0 GiB are free; almost full, so no checkpoints are written" in await payload_files.told(files)
    assert "no checkpoints are written" in await payload_files.fault(files)
    assert (await archives.put(JobRef("acme:r:g:0"), b"small")).file == ""
    held = await queue.hold(Stage.RUN)
    assert files.fault(TENANT, await put(queue, held)) == ""


@pytest.mark.parametrize("number", [28, 122])
async def test_on_a_full_disk_or_over_a_quota_no_rollout_is_lost(
    place: Place, files: PayloadFiles, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Its checkpoint is skipped, and its trajectory is in Redis."""

    def fails(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    asked = count("prorl_checkpoints_unsaved_total")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fails)
        await lost(place)
        await finished(place)
        held = await place.queue.hold(Stage.RUN, group="other", batch="other")
        item = await acted(place.queue, held, 200_000)
    assert await reading.get(place.queue.store, TENANT, item.trajectory) is not None
    assert place.family.restored == [-1, -1]
    assert asked() >= 1
    assert under(files.directory) == set()


async def test_a_trajectory_that_neither_takes_is_put_again_by_the_next_attempt(
    queue: Queue, files: PayloadFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps the log, so that it samples nothing again; the last one ends as infrastructure and says what is full."""

    def fails(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fails)
    held = await queue.hold(Stage.RUN)
    item = await acted(queue, held, REDIS_BYTES + 1_000_000)
    assert isinstance(item, Fail)
    assert not item.forgets
    last = await acted(queue, held, REDIS_BYTES + 1_000_000, attempts=2)
    assert isinstance(last, Finish)
    sample = decode(last.record, SampleRecord)
    assert sample.error is not None
    assert (sample.outcome, sample.reward, sample.error.cause) == (Outcome.INFRA_ERROR, None, Cause.NODE)
    assert f"{files.directory}: [Errno 28] No space left on device" in sample.error.message
    assert "GiB are free" in sample.error.message


async def test_where_a_file_could_not_be_written_none_is_tried_for_a_minute(
    queue: Queue, files: PayloadFiles, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of checkpoints: a full file system is not asked by each rollout after each turn."""
    archives, ref = CheckpointArchives(queue.store), JobRef("acme:r:g:0")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: (tmp_path / "missing").stat())
        with pytest.raises(CheckpointSkipped, match="No such file"):
            await archives.put(ref, STATE)
    with pytest.raises(CheckpointSkipped, match="has taken nothing in the last minute"):
        await archives.put(ref, STATE)
    files.full_until = 0.0
    assert (await archives.put(ref, STATE)).file
