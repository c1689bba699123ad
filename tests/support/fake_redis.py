"""A queue on fakeredis: the verbs with their scripts in this process, for tests that need no server.

For answers and states alone. What fakeredis does not have (refusals for want of memory, texts of errors, idle times of
pending entries, blocking in scripts) is tested on a real server, as is everything that the project guarantees.
"""

from typing import Any

import msgspec
from fakeredis import FakeAsyncRedis, FakeServer
from fakeredis._commands import command
from fakeredis.commands_mixins.server_mixin import ServerCommandsMixin
from redis.asyncio import Redis

from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.scripts import names, script
from tests.support.queue import Queue


@command((bytes,), name="INFO")
def _info(_server: Any, _section: bytes) -> bytes:
    """All that the scripts ask: which server this is."""
    return b"# Replication\r\nrole:master\r\nmaster_replid:" + b"f" * 40 + b"\r\n"


setattr(ServerCommandsMixin, "_info", _info)  # noqa: B010 - its own commands are found by name


def _without_shebang(text: str) -> bytes:
    return text.replace("#!lua", "--", 1).encode()


def _in_lua(runtime: Any, value: Any) -> Any:
    match value:
        case dict():
            return runtime.table_from({_in_lua(runtime, key): _in_lua(runtime, each) for key, each in value.items()})
        case list():
            return runtime.table_from([_in_lua(runtime, each) for each in value])
        case str():
            return value.encode()
        case _:
            return value


async def fake_redis() -> "Redis":
    """An empty one. Its scripts are known by the hashes of their real texts; Lua has `cmsgpack.unpack`."""
    server: Any = FakeServer(server_type="valkey")
    redis: Redis = FakeAsyncRedis(server=server, protocol=2)
    redis.response_callbacks.clear()
    await redis.execute_command("EVAL", "return 1", 0)  # makes the interpreter
    runtime = server._lua_runtime
    unpack = lambda packed: _in_lua(runtime, msgspec.msgpack.decode(packed, strict=False))  # noqa: E731
    runtime.globals()[b"cmsgpack"] = runtime.table_from({b"unpack": unpack})
    server._lua_expected_globals.add(b"cmsgpack")
    server.script_cache.update({script(name).sha.encode(): _without_shebang(script(name).text) for name in names()})
    return redis


async def fake_queue(name: str = "w1") -> Queue:
    """One worker's store on it, with the shared streams and the lane of node `n1`."""
    made = Queue(await fake_redis(), Keys("t"), name)
    await made.prepare("n1")
    return made
