"""put and get: by size to Redis or to a file, and what becomes of it where the file system does not do its part."""

import asyncio
import os
from collections.abc import Sequence
from typing import Any

import pytest

from prorl_mq.errors import PayloadTooLarge, PayloadUnavailable
from prorl_mq.schema.ids import JobRef, Token
from prorl_mq.schema.items import Advance, Held
from prorl_mq.schema.messages import Stage
from prorl_mq.store.payloads import reading, writing
from prorl_mq.store.payloads.files import PayloadFiles
from prorl_mq.store.payloads.limits import REDIS_BYTES, SMALL_BYTES
from prorl_mq.store.payloads.name import PayloadFile, named_file
from prorl_mq.store.payloads.writing import PayloadKind, StoredPayload
from tests.payloads.conftest import TENANT, under
from tests.support.queue import Queue

pytestmark = pytest.mark.anyio
JOB, TOKEN = JobRef("acme:r:g:0"), Token("1-a.1")


async def put(queue: Queue, data: bytes, *, direct: bool = False) -> StoredPayload:
    return await writing.put(queue.store, JOB, TOKEN, PayloadKind.TRAJECTORY, data, direct=direct)


async def keys_of(queue: Queue) -> Sequence[bytes]:
    found: Sequence[bytes] = await queue.command("KEYS", f"{queue.keys.prefix}blob:*")
    return found


@pytest.mark.parametrize(
    ("size", "direct", "in_file"),
    [(SMALL_BYTES, False, False), (SMALL_BYTES + 1, False, True), (SMALL_BYTES + 1, True, False),
     (REDIS_BYTES, True, False), (REDIS_BYTES + 1, True, True), (REDIS_BYTES + 1, False, True)],
)  # fmt: skip
async def test_the_size_says_where(queue: Queue, files: PayloadFiles, size: int, direct: bool, in_file: bool) -> None:
    """A trainer with Redis alone gets all from there that Redis takes."""
    data = os.urandom(size)
    stored = await put(queue, data, direct=direct)
    assert (stored.in_file, stored.fault) == (in_file, "")
    assert await reading.get(queue.store, JOB, stored.name) == data
    assert (len(under(files.directory)), len(await keys_of(queue))) == ((1, 0) if in_file else (0, 1))


@pytest.mark.parametrize("place", ["none", "not made"])
async def test_without_a_directory_all_is_as_it_was(queue: Queue, files: PayloadFiles, place: str) -> None:
    """One key with a TTL of an hour, and nothing beside it."""
    files.directory.rmdir()
    queue.store.payloads = None if place == "none" else files
    stored = await put(queue, b"x" * (SMALL_BYTES + 1))
    assert stored == (f"{queue.keys.prefix}blob:{JOB}:{TOKEN}:trajectory", "")
    assert 3_590_000 < await queue.command("PTTL", stored.name) <= 3_600_000
    assert not files.directory.exists()


@pytest.mark.parametrize("place", ["none", "not made", "a fault"])
async def test_what_is_too_large_for_redis_says_what_to_do(
    queue: Queue, files: PayloadFiles, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    advice = f"and cannot be written to a file: {files.directory}"
    if place == "a fault":
        monkeypatch.setattr(os, "fsync", _fails)
    else:
        files.directory.rmdir()
        advice = f"make the directory {files.directory}" if place == "not made" else "make a directory `payloads`"
    queue.store.payloads = None if place == "none" else files
    with pytest.raises(PayloadTooLarge, match="MiB is too large for Redis, which takes 16 MiB") as raised:
        await put(queue, bytes(REDIS_BYTES + 1))
    assert advice in str(raised.value)
    assert not await keys_of(queue)


def _fails(*_: Any) -> None:
    raise OSError(28, "No space left on device")


async def test_where_no_file_can_be_written_redis_takes_it_and_the_reason_is_there(
    queue: Queue, files: PayloadFiles, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", _fails)
        stored = await put(queue, b"x" * (SMALL_BYTES + 1))
    assert not stored.in_file
    assert "No space left on device" in stored.fault
    assert f"goes to Redis: {files.directory}" in caplog.text
    assert under(files.directory) == set()
    assert (await put(queue, b"x" * (SMALL_BYTES + 1))).in_file  # there is room again


async def test_a_directory_that_was_there_and_is_not_is_a_fault(queue: Queue, files: PayloadFiles) -> None:
    await put(queue, b"x" * (SMALL_BYTES + 1))
    files.directory.rename(files.directory.with_name("unmounted"))
    assert (await put(queue, b"y" * (SMALL_BYTES + 1))).fault


async def test_a_file_that_appears_late_is_waited_for(queue: Queue, files: PayloadFiles) -> None:
    """As on a network file system, which shows nothing at first and then a part."""
    data = b"x" * 100_000
    name = PayloadFile.of(data)
    looks: list[str] = []

    class Late(PayloadFiles):
        def read(self, tenant: str, name: PayloadFile, *, again: bool = False) -> bytes:
            looks.append("again" if again else "first")
            if len(looks) == 3:
                self.write(tenant, data)
                os.truncate(self.path(tenant, name), 5)
            if len(looks) == 4:
                self.write(tenant, data)
            return super().read(tenant, name, again=again)

    queue.store.payloads = Late(files.directory, "t")
    assert await reading.get(queue.store, JOB, str(name), within_s=30) == data
    assert looks == ["first", "again", "again", "again"]


@pytest.mark.parametrize("what", ["missing", "short", "other", "unmounted", "no place"])
async def test_one_that_does_not_appear_is_named_with_what_to_do(queue: Queue, files: PayloadFiles, what: str) -> None:
    name = (await put(queue, b"x" * 100_000)).name
    file = named_file(name)
    assert file is not None
    path = files.path(TENANT, file)
    match what:
        case "missing":
            path.unlink()
        case "short":
            os.truncate(path, 99)
        case "other":
            path.write_bytes(b"y" * 100_000)
        case "unmounted":
            files.directory.rename(files.directory.with_name("elsewhere"))
        case _:
            queue.store.payloads = None
    with pytest.raises(PayloadUnavailable) as raised:
        await reading.get(queue.store, JOB, name, within_s=0.2)
    said = {
        "missing": f"{path} cannot be read: No such file", "short": f"{path} cannot be read: it has 99 of its 100000",
        "other": f"{path} cannot be read: its content is another",
        "unmounted": f"{files.directory} is not on this host", "no place": "this process knows no directory",
    }  # fmt: skip
    assert said[what] in str(raised.value)
    assert raised.value.retryable


async def test_another_tenant_that_names_it_gets_nothing(queue: Queue) -> None:
    name = (await put(queue, b"x" * 100_000)).name
    with pytest.raises(PayloadUnavailable):
        await reading.get(queue.store, "other:r:g:0", name, within_s=0.1)


async def test_a_file_system_that_hangs_costs_a_time_and_no_payload(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not asked again for a while, but for what Redis does not take."""
    loop, asked = asyncio.get_running_loop(), list[None]()

    async def hangs(_act: Any) -> None:
        asked.append(None)
        await asyncio.Event().wait()

    monkeypatch.setattr(writing, "in_thread", hangs)
    monkeypatch.setattr(writing, "WRITE_S", 0.1)
    began = loop.time()
    assert "it has not answered for 0.1 s" in (await put(queue, b"x" * 100_000)).fault
    assert loop.time() - began < 30
    assert (await put(queue, b"y" * 100_000)).fault
    assert len(asked) == 1
    with pytest.raises(PayloadTooLarge, match="it has not answered"):
        await put(queue, bytes(REDIS_BYTES + 1))
    assert len(asked) == 2
    assert queue.store.payloads is not None
    queue.store.payloads.hung_until = 0.0
    assert (await put(queue, b"z" * 100_000)).fault
    assert len(asked) == 3


async def test_a_commit_names_it_and_keeps_no_key(queue: Queue) -> None:
    held = await queue.hold(Stage.RUN)
    name = await stored_of(queue, held, b"x" * 100_000)
    before = set(await queue.command("KEYS", "*"))
    assert await queue.store.advance([Advance(held, None, b"c", name, 100_000)]) == ["advanced"]
    assert set(await queue.command("KEYS", "*")) <= before | {queue.keys.eval_bytes.encode()}
    [entry] = await queue.read(Stage.EVAL)
    assert entry.claim is not None
    assert entry.claim.trajectory == name
    assert (await queue.command("HGET", queue.keys.job(held.ref), "trajectory")).decode() == name


async def stored_of(queue: Queue, held: Held, data: bytes) -> str:
    return (await writing.put(queue.store, held.ref, held.token, PayloadKind.TRAJECTORY, data)).name
