"""A tenant's Redis user takes little of Redis: neither by answers that it does not read, nor by streams and groups.

On the server that the suite runs on, from `ops/redis.conf`.
"""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace
from redis.exceptions import ConnectionError, NoPermissionError, OutOfMemoryError, ResponseError

from prorl_mq.errors import RedisUnavailable
from prorl_mq.process import redis_server
from prorl_mq.schema.ids import run_ref
from prorl_mq.store.direct import consumers
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server import acl, fitness
from prorl_mq.store.server.connection import RedisSettings, ask, connect, patiently
from prorl_mq.store.store import Store
from tests.conftest import binaries

pytestmark = pytest.mark.anyio
MIB = 1 << 20
LIMIT = 64 * MIB  # of the server; a quarter is for clients
SECRET = "a-secret-of-a-test"
NAMESPACE = "prorl"


@contextlib.asynccontextmanager
async def serving(*options: str) -> AsyncIterator[RedisSettings]:
    [binary] = binaries().values()
    given = ["--maxmemory", str(LIMIT), *options]
    with tempfile.TemporaryDirectory() as name:
        async with redis_server.running(Path(name), binary=binary, options=given) as settings:
            redis = connect(settings)
            for user, rules in acl.users(NAMESPACE, ["ann"]).items():
                await ask(redis, "ACL", "SETUSER", user, "on", f">{SECRET}", *_words(rules))
            # one argument by another: long replies that no server can send without a copy
            await ask(redis, "EVAL", "for i = 1, 256 do redis.call('XADD', KEYS[1], '*', 'm', ARGV[1]) end", 1,
                      Keys(NAMESPACE).results(run_ref("ann", "run")), "x" * 4096)  # fmt: skip
            await redis.aclose()
            yield settings


def _words(rules: str) -> Sequence[str]:
    """Rules as arguments; a selector in brackets is one."""
    found: list[str] = []
    for word in rules.split():
        if found and found[-1].startswith("(") and not found[-1].endswith(")"):
            found[-1] += f" {word}"
        else:
            found.append(word)
    return found


def of(settings: RedisSettings, role: str, *, kept: bool = False) -> RedisSettings:
    return replace(settings, username=f"{NAMESPACE}-{role}", password=SECRET, kept=kept)


class Deaf:
    """Connections of a tenant's Redis user that ask for its results and read no answer."""

    def __init__(self, settings: RedisSettings) -> None:
        self._path = settings.url.removeprefix("unix://")
        self._held: list[asyncio.StreamWriter] = []

    async def hold(self, connections: int, mib: int) -> None:
        asks = b"XRANGE %b - +\r\n" % Keys(NAMESPACE).results(run_ref("ann", "run")).encode()
        for _ in range(connections):
            reader, writer = await asyncio.open_unix_connection(self._path, limit=1024)
            writer.write(b"AUTH %b %b\r\n" % (f"{NAMESPACE}-trainer-ann".encode(), SECRET.encode()))
            assert await reader.readline() == b"+OK\r\n"
            writer.write(asks * mib)
            self._held.append(writer)

    def end(self) -> None:
        for each in self._held:
            each.transport.abort()


@contextlib.asynccontextmanager
async def deaf(settings: RedisSettings, connections: int, mib: int) -> AsyncIterator[Deaf]:
    made = Deaf(settings)
    try:
        await made.hold(connections, mib)
        yield made
    finally:
        made.end()


async def figures(settings: RedisSettings) -> tuple[int, int]:
    """Bytes that clients hold, and how many were disconnected for it."""
    redis = connect(settings)
    try:
        memory, stats = await fitness.info(redis, "memory"), await fitness.info(redis, "stats")
        return int(memory["mem_clients_normal"]), int(stats["evicted_clients"])
    finally:
        await redis.aclose()


async def written(settings: RedisSettings) -> None:
    redis = connect(of(settings, "ingress"))
    try:
        await ask(redis, "SET", Keys(NAMESPACE).duty("x"), "x" * MIB)
    finally:
        await redis.aclose()


async def test_a_tenant_that_reads_no_answer_does_not_fill_redis() -> None:
    async with serving() as settings, deaf(settings, connections=8, mib=16), asyncio.timeout(30):
        while (await figures(settings))[1] < 6:
            await asyncio.sleep(0.02)
        held, _ = await figures(settings)
        assert held <= LIMIT // 4 + 2 * MIB
        await written(settings)


async def test_control_without_the_bound_its_answers_stop_all_work() -> None:
    async with serving("--maxmemory-clients", "0") as settings, deaf(settings, connections=8, mib=16):
        async with asyncio.timeout(30):
            while (await figures(settings))[0] < LIMIT:
                await asyncio.sleep(0.02)
        with pytest.raises(OutOfMemoryError):
            await written(settings)


@pytest.fixture(params=[True, False], ids=["kept", "control"])
def kept(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


async def test_a_tenant_that_holds_much_costs_its_own_connections_and_not_the_services(kept: bool) -> None:
    """A large answer on its way is more than any of the tenant's small ones: it would go first."""
    async with serving() as settings, deaf(settings, connections=10, mib=1) as tenants:
        async with asyncio.timeout(30):
            while (await figures(settings))[0] < 12 * MIB:  # sockets take a part of each answer, more or less of it
                await tenants.hold(connections=1, mib=1)
                await asyncio.sleep(0.1)
        redis = connect(of(settings, "ingress", kept=kept), connections=1)
        connection = await redis.connection_pool.get_connection()
        await connection.send_command("EVAL", f"return {{{','.join(['ARGV[1]'] * 12)}}}", 0, "x" * MIB)
        async with asyncio.timeout(30):
            while not (await figures(settings))[1]:
                await asyncio.sleep(0.02)
        if kept:
            assert len(await connection.read_response()) == 12
        else:
            with pytest.raises(ConnectionError):
                await connection.read_response()
        await redis.connection_pool.release(connection)
        await redis.aclose()


async def test_a_disconnected_client_connects_again() -> None:
    async with serving() as settings:
        redis = connect(of(settings, "worker"), connections=2)
        store = Store(redis, Keys(NAMESPACE), name="w")
        waits = asyncio.create_task(store.wait_read("XREAD", "BLOCK", 20_000, "STREAMS", store.keys.events, "$"))
        admin = connect(settings)
        async with asyncio.timeout(20):
            while b"cmd=xread" not in await ask(admin, "CLIENT", "LIST"):
                await asyncio.sleep(0.01)
            await ask(admin, "CLIENT", "KILL", "USER", f"{NAMESPACE}-worker")
            while b"cmd=xread" not in await ask(admin, "CLIENT", "LIST"):
                await asyncio.sleep(0.01)
            await patiently(lambda: ask(admin, "XADD", store.keys.events, "*", "a", "b"), outage_ms=5_000)
            assert await waits
        await admin.aclose()
        await redis.aclose()


GROUPS = (
    ("XGROUP", "CREATE", "{prorl}:results:ann:run", "another", "0"),
    ("XGROUP", "CREATE", "{prorl}:results:ann:new", "trainer", "0", "MKSTREAM"),
)


@pytest.mark.parametrize("command", GROUPS)
@pytest.mark.parametrize("rule", ["", "(~{prorl}:results:ann:* +xgroup|create)"], ids=["", "control"])
async def test_a_tenant_makes_no_groups_and_no_streams(command: Sequence[str], rule: str) -> None:
    """The control is the rule that such users had: they made any number of them."""
    async with serving() as settings:
        admin, redis = connect(settings), connect(of(settings, "trainer-ann"))
        if rule:
            await ask(admin, "ACL", "SETUSER", f"{NAMESPACE}-trainer-ann", rule)
            assert await ask(redis, *command) == b"OK"
        else:
            with pytest.raises(NoPermissionError):
                await ask(redis, *command)
            before = await ask(admin, "DBSIZE")
            for run in ("run", "new"):
                with pytest.raises(ResponseError, match="NOGROUP"):
                    await ask(redis, "XREADGROUP", "GROUP", "g", "me", "STREAMS", f"{{prorl}}:results:ann:{run}", ">")
            assert await ask(admin, "DBSIZE") == before
        for each in (admin, redis):
            await each.aclose()


async def test_a_trainer_that_finds_no_group_is_told_to_try_again() -> None:
    async with serving() as settings:
        redis = connect(of(settings, "trainer-ann"))
        with pytest.raises(RedisUnavailable, match="no consumer group yet"):
            await consumers.create(Store(redis, Keys(NAMESPACE), name="t"), run_ref("ann", "new"))
        await redis.aclose()


async def test_a_user_of_an_earlier_release_is_served_though_it_is_not_kept() -> None:
    async with serving() as settings:
        admin = connect(settings)
        await ask(admin, "ACL", "SETUSER", f"{NAMESPACE}-worker", "-client|no-evict")
        await admin.aclose()
        for role, flag in (("worker", b"e"), ("ingress", b"e")):
            redis = connect(of(settings, role, kept=True), connections=1)
            assert await ask(redis, "PING") == b"PONG"
            info = await ask(redis, "CLIENT", "INFO") if role == "ingress" else b"flags=N "
            flags = info.partition(b"flags=")[2].partition(b" ")[0]
            assert (flag in flags) is (role == "ingress"), (role, info)
            await redis.aclose()
