"""An old primary that nobody has told: it answers whoever still asks it, and does not know better."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from prorl_mq.process import redis_server
from prorl_mq.process.ports import free_port
from prorl_mq.store.server import primary, rendezvous
from prorl_mq.store.server.beat import threaded
from prorl_mq.store.server.connection import RedisClient, RedisSettings, ask, connect
from tests.conftest import binaries

pytestmark = [pytest.mark.anyio, pytest.mark.process]


@contextlib.asynccontextmanager
async def two(tmp_path: Path) -> AsyncIterator[RedisSettings]:
    """A list of two servers that call themselves primary. The first one has the epoch 1, the second one none."""
    ports = [free_port(), free_port()]
    async with contextlib.AsyncExitStack() as stack:
        for port in ports:
            directory, [binary] = tmp_path / str(port), binaries().values()
            process = redis_server.start(binary, directory, ["--port", str(port)])
            stack.push_async_callback(asyncio.to_thread, redis_server.stop, process)
            await redis_server.answering(RedisSettings(url=f"unix://{directory}/redis.sock"), process, directory)
        await opened(ports[0], 1)
        yield RedisSettings(url=",".join([f"redis://127.0.0.1:{ports[0]}", f"127.0.0.1:{ports[1]}/0"]))


async def opened(port: int, number: int) -> None:
    redis = connect(RedisSettings(url=f"redis://127.0.0.1:{port}"), connections=1)
    await ask(redis, "HSET", "{prorl}:epoch", "number", number)
    await redis.aclose()


async def asked(redis: RedisClient) -> int:
    """The number of the epoch on the server that a client asks."""
    return int(await ask(redis, "HGET", "{prorl}:epoch", "number"))


@pytest.mark.parametrize("wired", [True, False])
@pytest.mark.parametrize("told", [True, False])
async def test_who_only_reads_leaves_an_old_primary_when_another_client_has_found_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wired: bool, told: bool
) -> None:
    """Nothing that it is answered says that it is the wrong one. The control: a client that looks by itself alone."""
    async with two(tmp_path) as settings, contextlib.AsyncExitStack() as stack:
        reader, other = connect(settings, wired=wired), connect(settings)
        stack.push_async_callback(reader.aclose)
        stack.push_async_callback(other.aclose)
        assert await asked(reader) == 1
        await opened(int(settings.url.rpartition(":")[2].partition("/")[0]), 2)
        assert await asked(reader) == 1, "its connection stands"
        before = dict(primary._found)
        assert await asked(other) == 2
        if not told:
            monkeypatch.setattr(primary, "_found", before)
        assert await asked(reader) == (2 if told else 1)


@pytest.mark.parametrize("told", [True, False])
async def test_a_heartbeat_leaves_it_too_and_tells_the_others_what_it_has_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: bool
) -> None:
    """At an old primary its thread renews no lease of the new one. The control: it sees not what others have found."""
    async with two(tmp_path) as settings, contextlib.AsyncExitStack() as stack:
        beating, other = threaded(settings, timeout_s=2.0), connect(settings)
        stack.callback(beating.close)
        stack.push_async_callback(other.aclose)

        async def beaten() -> int:
            execute: Callable[..., Any] = beating.execute_command
            return int(await asyncio.to_thread(execute, "HGET", "{prorl}:epoch", "number"))

        assert await asked(other) == await beaten() == 1
        await opened(int(settings.url.rpartition(":")[2].partition("/")[0]), 2)
        assert await beaten() == 1, "its connection stands"
        before = dict(primary._found)
        late = connect(settings)
        stack.push_async_callback(late.aclose)
        assert await asked(late) == 2
        if not told:
            monkeypatch.setattr(primary, "_found", before)
        assert await beaten() == (2 if told else 1)
        monkeypatch.setattr(primary, "_found", before)
        beating.connection_pool.disconnect()
        assert await beaten() == 2
        assert await asked(other) == 2


@pytest.mark.parametrize("apart", [True, False])
async def test_two_users_of_one_address_who_connect_at_once_stay_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apart: bool
) -> None:
    """As two tenants in one trainer. The control: they share a look, whose answer has the first one's password."""
    if not apart:
        monkeypatch.setattr(rendezvous, "credentials", lambda *_: None)
    async with two(tmp_path) as settings, contextlib.AsyncExitStack() as stack:
        for port in re.findall(r":(\d+)", settings.url):
            admin = connect(RedisSettings(url=f"redis://127.0.0.1:{port}"), connections=1)
            stack.push_async_callback(admin.aclose)
            for name in ("red", "blue"):
                await ask(admin, "ACL", "SETUSER", name, "on", f">{name}", "~*", "+@all")
        clients = []
        for name in ("red", "blue"):
            clients.append(connect(replace(settings, username=name, password=name)))
            stack.push_async_callback(clients[-1].aclose)
        names = await asyncio.gather(*(ask(client, "ACL", "WHOAMI") for client in clients))
    assert names == ([b"red", b"blue"] if apart else [b"red", b"red"])
