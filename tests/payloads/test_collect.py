"""The collection takes what nothing names, in time, and never what a live key names or is about to name."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prorl_mq.cli import doctor
from prorl_mq.duties import payloads
from prorl_mq.duties.payloads import PayloadCollection
from prorl_mq.duties.running import running
from prorl_mq.schema.ids import RunRef
from prorl_mq.schema.items import Advance, Held, Logged
from prorl_mq.schema.messages import Outcome, Stage
from prorl_mq.store import results
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.payloads import marks, owner, reading, writing
from prorl_mq.store.payloads.checkpoints import CheckpointArchives
from prorl_mq.store.payloads.files import OWNER, PayloadFiles
from prorl_mq.store.payloads.limits import GRACE_S, SETTLED_S, UNCOMMITTED_TTL_MS
from prorl_mq.store.payloads.name import WITHIN, PayloadFile, named_file
from prorl_mq.store.payloads.writing import PayloadKind
from prorl_mq.store.server import acl
from prorl_mq.store.server.connection import RedisSettings, connect
from tests.payloads.conftest import OLD_S, TENANT, age, under
from tests.support.epoch import another_server
from tests.support.queue import RUN, Queue
from tests.support.service import until

pytestmark = pytest.mark.anyio
DATA = b"x" * 100_000


def collection(queue: Queue, files: PayloadFiles, grace_s: float = GRACE_S) -> PayloadCollection:
    return PayloadCollection(queue.store, files, grace_s=grace_s)


async def collected(queue: Queue, files: PayloadFiles, grace_s: float = GRACE_S) -> int:
    """A whole collection without its waits; how many pieces it had."""
    return len([wait_s async for wait_s in collection(queue, files, grace_s)._collect()])


async def put(queue: Queue, held: Held, data: bytes = DATA) -> PayloadFile:
    """As RUN does, before its commit."""
    name = (await writing.put(queue.store, held.ref, held.token, PayloadKind.TRAJECTORY, data)).name
    file = named_file(name)
    assert file is not None
    return file


async def commit(queue: Queue, held: Held, file: PayloadFile) -> Held:
    assert await queue.store.advance([Advance(held, None, b"", str(file), file.size)]) == ["advanced"]
    [after] = await queue.take(Stage.EVAL)
    return after


async def finish(queue: Queue, held: Held, file: PayloadFile) -> None:
    assert await queue.finish(held, trajectory=str(file), trajectory_bytes=file.size) == "finished"


async def acknowledge(queue: Queue) -> None:
    found = await queue.results()
    assert await results.acknowledge(queue.store, RUN, [each.cursor for each in found]) == len(found)
    jobs = await queue.command("KEYS", f"{queue.keys.prefix}job:*")  # they go by their TTL
    await queue.command("UNLINK", *jobs)


async def test_the_grace_time_is_longer_than_what_a_commit_may_take() -> None:
    """A payload in Redis is gone after its TTL: no commit that succeeds comes later."""
    assert GRACE_S * 1000 >= 2 * UNCOMMITTED_TTL_MS


async def test_a_file_is_kept_for_as_long_as_something_names_it_and_then_goes(
    queue: Queue, files: PayloadFiles
) -> None:
    held = await queue.hold(Stage.RUN)
    file = await put(queue, held)
    await collected(queue, files)  # it is young
    assert await reading.get(queue.store, RUN, str(file)) == DATA
    held = await commit(queue, held, file)
    age(files, file)
    await collected(queue, files)  # its job names it
    assert await reading.get(queue.store, RUN, str(file)) == DATA
    await finish(queue, held, file)
    await queue.command("HDEL", queue.keys.job(held.ref), "trajectory")
    await collected(queue, files)  # its group does
    assert await reading.get(queue.store, RUN, str(file)) == DATA
    await queue.settle()
    await collected(queue, files)  # its record does
    assert await reading.get(queue.store, RUN, str(file)) == DATA
    await acknowledge(queue)
    await collected(queue, files)
    assert under(files.directory) == set()


async def test_two_that_put_the_same_keep_one_file_until_neither_names_it(queue: Queue, files: PayloadFiles) -> None:
    first, second = await queue.hold(Stage.RUN, group="a"), await queue.hold(Stage.RUN, group="b", batch="c")
    file = await put(queue, first)
    assert await put(queue, second) == file
    await finish(queue, await commit(queue, first, file), file)
    await queue.settle()
    await acknowledge(queue)
    await commit_again(queue, second, file)
    age(files, file)
    await collected(queue, files)
    assert await reading.get(queue.store, RUN, str(file)) == DATA


async def commit_again(queue: Queue, held: Held, file: PayloadFile) -> None:
    """`acknowledge` has removed every job: this one is named by its hash alone."""
    await queue.command("HSET", queue.keys.job(held.ref), "trajectory", str(file))


async def test_a_worker_killed_between_put_and_commit_leaves_nothing_after_the_grace_time(
    queue: Queue, files: PayloadFiles
) -> None:
    held = await queue.hold(Stage.RUN)
    file = await put(queue, held)
    age(files, file, seconds=GRACE_S - 60)
    await collected(queue, files)
    assert len(under(files.directory)) == 1
    age(files, file, seconds=GRACE_S + 60)
    await collected(queue, files)
    assert under(files.directory) == set()


async def each_piece(queue: Queue, files: PayloadFiles) -> AsyncIterator[tuple[int, AsyncIterator[float]]]:
    """A collection that has stopped after each number of pieces. The files are old and named by nothing at first."""
    for number in itertools.count():
        await queue.command("FLUSHALL")
        await queue.prepare()
        files.owner_file.unlink(missing_ok=True)
        pieces = collection(queue, files)._collect()
        yield number, pieces
        if number > 4 and await anext(pieces, None) is None:
            return


async def after(pieces: AsyncIterator[float], number: int) -> None:
    for _ in range(number):
        await anext(pieces, None)


async def test_one_that_is_put_again_and_named_at_any_moment_of_a_collection_stays(
    queue: Queue, files: PayloadFiles
) -> None:
    """Its content was put by an earlier attempt, whose file nothing names: it is being collected meanwhile."""
    async for number, pieces in each_piece(queue, files):
        held = await queue.hold(Stage.RUN)
        age(files, await put(queue, held))
        await after(pieces, number)
        file = await put(queue, held)
        await commit(queue, held, file)
        async for _ in pieces:
            pass
        assert await reading.get(queue.store, RUN, str(file), within_s=0.0) == DATA, number


async def test_without_a_grace_time_it_would_be_taken_before_its_commit(queue: Queue, files: PayloadFiles) -> None:
    """The control of the grace time."""
    held = await queue.hold(Stage.RUN)
    file = await put(queue, held)
    await collected(queue, files, grace_s=-60)
    await commit(queue, held, file)
    assert files.fault(TENANT, file) == "No such file or directory"


async def moved_on(queue: Queue, files: PayloadFiles) -> list[int]:
    """The moments at which a name may move on during a collection, and its file is gone at the end."""
    lost = []
    async for number, pieces in each_piece(queue, files):
        held = await queue.hold(Stage.RUN)
        file = await put(queue, held)
        held = await commit(queue, held, file)
        age(files, file)
        await after(pieces, number)
        await finish(queue, held, file)
        await queue.command("UNLINK", queue.keys.job(held.ref))  # as its TTL does
        async for _ in range_of(pieces, 1):
            await queue.settle()
        async for _ in pieces:
            pass
        await queue.settle()
        if files.fault(TENANT, file):
            lost.append(number)
        else:
            files.path(TENANT, file).unlink()
    return lost


async def range_of(pieces: AsyncIterator[float], count: int) -> AsyncIterator[float]:
    """The next pieces; at least one turn, where there are no more."""
    for _ in range(count):
        yield await anext(pieces, 0.0)


async def test_a_name_that_moves_on_at_any_moment_of_the_walk_is_seen(queue: Queue, files: PayloadFiles) -> None:
    assert await moved_on(queue, files) == []


async def test_a_walk_in_another_order_would_miss_it(
    queue: Queue, files: PayloadFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the order."""
    monkeypatch.setattr(marks, "ORDER", marks.ORDER[::-1])
    assert await moved_on(queue, files) != []


async def test_what_a_restart_may_bring_back_is_not_removed(queue: Queue, files: PayloadFiles) -> None:
    """The walk has seen it go; then Redis starts again, without its last second."""
    held = await queue.hold(Stage.RUN)
    age(files, await put(queue, held))
    assert files.owner() == ""
    await collected(queue, files, grace_s=2 * OLD_S)  # which makes it these data's
    pieces = collection(queue, files)._collect()
    async for wait_s in pieces:
        if wait_s == SETTLED_S:
            break
    await another_server(queue)
    await queue.store.open_epoch()
    assert [wait_s async for wait_s in pieces] == []
    assert len(under(files.directory)) == 1
    await collected(queue, files)
    assert under(files.directory) == set()


async def test_a_server_that_has_lost_its_data_collects_nothing(
    queue: Queue, files: PayloadFiles, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor does another one that was given the directory: neither names any of the files."""
    held = await queue.hold(Stage.RUN)
    file = await put(queue, held)
    await commit(queue, held, file)
    await collected(queue, files)
    mark = await owner.known(queue.store)
    assert files.owner() == mark != ""
    age(files, file)
    await queue.command("FLUSHALL")
    await queue.prepare()
    await collected(queue, files)
    assert f"remove {files.owner_file}" in caplog.text
    finding = await doctor._payloads(queue.store)
    assert finding.fix == f"Restore Redis's data, or give up those files: remove {files.owner_file}"
    assert files.fault(TENANT, file) == ""
    await queue.command("HSET", queue.keys.epoch, "payloads", mark)  # its data are restored, jobs and all
    await queue.command("HSET", queue.keys.job(held.ref), "trajectory", str(file))
    await collected(queue, files)
    assert files.fault(TENANT, file) == ""
    await queue.command("FLUSHALL")
    await queue.prepare()
    files.owner_file.unlink()  # the operator gives them up
    await collected(queue, files)
    assert files.fault(TENANT, file)


async def test_a_mark_that_redis_has_lost_again_is_not_left(queue: Queue, files: PayloadFiles) -> None:
    files.write(TENANT, DATA)
    pieces = collection(queue, files)._collect()
    assert await anext(pieces) == SETTLED_S
    await queue.command("HDEL", queue.keys.epoch, "payloads")
    assert [wait_s async for wait_s in pieces] == []
    assert files.owner() == ""
    await collected(queue, files)
    assert files.owner() == await owner.known(queue.store) != ""


async def test_a_key_that_cannot_be_read_keeps_its_tenants_files_and_no_others(
    queue: Queue, files: PayloadFiles
) -> None:
    for tenant in (TENANT, "other"):
        age(files, files.write(tenant, DATA), tenant)
    await queue.command("SET", queue.keys.results(RunRef("other:r")), "no stream")
    await collected(queue, files)
    assert {each.split("/")[1] for each in under(files.directory)} == {"other"}


async def test_the_ingress_may_look_at_all_that_names_a_file(
    queue: Queue, files: PayloadFiles, settings: RedisSettings
) -> None:
    """Under the Redis user of the process that collects."""
    held = await queue.hold(Stage.RUN)
    file = await put(queue, held)
    held = await commit(queue, held, file)
    await finish(queue, held, file)
    await queue.settle()
    age(files, file)
    rules = acl.users(settings.namespace)[f"{settings.namespace}-ingress"]
    await queue.command("ACL", "SETUSER", "ingress", "reset", "on", ">secret", *rules.split())
    client = connect(msgspec.structs.replace(settings, username="ingress", password="secret"))
    try:
        await collected(Queue(client, queue.keys), files)
        assert files.fault(TENANT, file) == ""
        await acknowledge(queue)
        await collected(Queue(client, queue.keys), files)
        assert under(files.directory) == set()
    finally:
        await client.aclose()
        await queue.command("ACL", "DELUSER", "ingress")


async def test_one_tenants_name_keeps_no_file_of_another(queue: Queue, files: PayloadFiles) -> None:
    name = files.write("other", DATA)
    age(files, name, "other")
    await queue.command("HSET", queue.keys.prefix + "job:acme:r:g:0", "trajectory", str(name))
    await collected(queue, files)
    assert under(files.directory) == set()


async def test_collections_go_round_where_there_is_more_than_one_can_take(
    queue: Queue, files: PayloadFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that are named do not keep those behind them."""
    monkeypatch.setattr(payloads, "MOST", 4)
    monkeypatch.setattr(payloads, "FOLDERS", 1)
    for number in range(24):
        name = files.write(TENANT, bytes([number]) * 100)
        age(files, name)
        if number % 2:
            await queue.command("HSET", queue.keys.prefix + f"job:acme:r:g:{number}", "trajectory", str(name))
    again = collection(queue, files)
    for _ in range(12):
        async for _ in again._collect():
            pass
    assert len(under(files.directory)) == 12


async def test_a_turn_is_a_piece_and_keeps_the_lease(queue: Queue, files: PayloadFiles) -> None:
    age(files, files.write(TENANT, DATA))
    once = PayloadCollection(queue.store, files, settled_s=0.0, rest_s=3600.0)
    async with asyncio.timeout(60):
        while under(files.directory):
            wait_s = await once.turn()
            assert 0 <= wait_s <= 1.0
            await asyncio.sleep(wait_s)
        while await once.turn() < 1.0:
            await asyncio.sleep(0.01)


async def test_the_service_runs_it_where_there_is_a_place(settings: RedisSettings, keys: Keys) -> None:
    client = connect(settings)
    try:
        async with running(settings, name="api"):

            async def held() -> bool:
                return bool(await client.execute_command("EXISTS", keys.duty("payloads")))

            await until(held)
    finally:
        await client.aclose()


# Histories

OPS = ("put", "save", "save", "kill", "commit", "finish", "settle", "ack", "age", "step", "step")


class History:
    """Jobs whose payloads are put, named and let go, in any order, with a collection under way."""

    def __init__(self, queue: Queue, files: PayloadFiles) -> None:
        self.queue, self.files = queue, files
        self.groups = itertools.count()
        self.put_: list[tuple[Held, PayloadFile]] = []
        self.committed: list[tuple[Held, PayloadFile]] = []
        self.finished: list[PayloadFile] = []
        self.saved: dict[Held, list[PayloadFile]] = {}  # of those that are in RUN: the last one counts
        self.archives = CheckpointArchives(queue.store)
        self.pieces: AsyncIterator[float] = collection(queue, files)._collect()

    async def do(self, op: str) -> None:
        acts: dict[str, Callable[[], Awaitable[None]]] = {
            "put": self.put, "save": self.save, "kill": self.kill, "commit": self.commit, "finish": self.finish,
            "settle": self.settle, "ack": self.ack, "age": self.age, "step": self.step,
        }  # fmt: skip
        await acts[op]()

    async def put(self) -> None:
        number = next(self.groups)
        held = await self.queue.hold(Stage.RUN, group=f"g{number}", batch=f"b{number}")
        self.put_.append((held, await put(self.queue, held, bytes([number % 3]) * 70_000)))

    async def save(self) -> None:
        """A checkpoint of the newest job's sandbox, in the place of the one before."""
        if self.put_:
            held, _ = self.put_[-1]
            saved = self.saved.setdefault(held, [])
            name = (await self.archives.put(held.ref, b"state" * 20_000)).file
            file = named_file(name)
            assert file is not None
            assert await self.queue.store.log([Logged(held, len(saved), b"c", b"archive", "", name)]) == ["logged"]
            saved.append(file)

    async def kill(self) -> None:
        """The worker of the oldest, before its commit: another attempt will put what it finds."""
        if self.put_:
            held, _ = self.put_.pop(0)
            await self.queue.finish(held, Outcome.INFRA_ERROR)
            self.saved.pop(held, None)

    async def commit(self) -> None:
        if self.put_:
            held, file = self.put_.pop(0)
            self.committed.append((await commit(self.queue, held, file), file))
            self.saved.pop(held, None)

    async def finish(self) -> None:
        if self.committed:
            held, file = self.committed.pop(0)
            await finish(self.queue, held, file)
            await self.queue.command("UNLINK", self.queue.keys.job(held.ref))
            self.finished.append(file)

    async def settle(self) -> None:
        await self.queue.settle()

    async def ack(self) -> None:
        """Of all that is published. What has ended and has no verdict yet stays."""
        found = await self.queue.results()
        for each in found:
            for name in WITHIN.finditer(each.record):
                self.finished.remove(PayloadFile(int(name[1]), name[2].decode()))
        await results.acknowledge(self.queue.store, RUN, [each.cursor for each in found])

    async def age(self) -> None:
        """Time passes: longer than a worker may wait with its commit, so that no put is without one any more."""
        while self.put_:
            await self.kill()
        for _, file in self.committed:
            age(self.files, file)
        for path in self.files.directory.rglob("*"):
            if path.is_file() and path.name != OWNER:
                name = PayloadFile(path.stat().st_size, path.name)
                age(self.files, name)

    async def step(self) -> None:
        if await anext(self.pieces, None) is None:
            self.pieces = collection(self.queue, self.files)._collect()

    def named(self) -> set[str]:
        checkpoints = [files[-1] for files in self.saved.values()]
        waiting = [each for _, each in [*self.put_, *self.committed]]
        return {file.digest for file in [*self.finished, *checkpoints, *waiting]}

    def there(self) -> set[str]:
        return {each.rpartition("/")[2] for each in under(self.files.directory)}


@given(st.lists(st.sampled_from(OPS), min_size=8, max_size=40))
@settings(max_examples=25, deadline=None, derandomize=True, database=None)
def test_no_history_loses_what_is_named_or_keeps_what_is_not(
    redis_server: RedisSettings, tmp_path_factory: pytest.TempPathFactory, ops: Sequence[str]
) -> None:
    async def play() -> None:
        directory = tmp_path_factory.mktemp("payloads")
        files = PayloadFiles(directory, redis_server.namespace)
        client = connect(redis_server)
        try:
            await client.execute_command("FLUSHALL")
            queue = Queue(client, Keys(redis_server.namespace))
            queue.store.payloads = files
            await queue.prepare()
            history = History(queue, files)
            for op in ops:
                await history.do(op)
                assert history.named() <= history.there()
            await history.age()
            for _ in range(2):  # what is under way may have begun before
                async for _ in history.pieces:
                    assert history.named() <= history.there()
                history.pieces = collection(queue, files)._collect()
            with contextlib.suppress(StopAsyncIteration):
                while True:
                    await anext(history.pieces)
            assert history.there() == history.named()
        finally:
            await client.aclose()

    asyncio.run(play())


async def test_what_is_dated_is_dated_by_the_file_systems_clock(files: PayloadFiles) -> None:
    name = files.write(TENANT, b"x")
    assert abs(files.now() - files.path(TENANT, name).stat().st_mtime) < 60
    assert abs(files.now() - time.time()) < 60
    assert len(under(files.directory)) == 1
