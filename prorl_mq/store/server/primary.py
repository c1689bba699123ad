"""The primary of several servers, looked for before each connect: as Sentinels name it, by asking each of a list, or as
the nodes of a cluster name the owner of the namespace's slot.

No answer is trusted: the server that a connection reaches must say itself that it is a primary, and what it has written
counts when its replicas have it (`prorl_mq.store.server.durability`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Any, Final, NamedTuple

from msgspec.structs import replace
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, ConnectionError, RedisError

from prorl_mq.schema.rendezvous import Place
from prorl_mq.servers import Node, SeveralServers, hidden, in_cluster, servers
from prorl_mq.store.server.cluster import NODES, owner, slot_of

_found: dict["SoughtPrimary", Node] = {}  # → the primary that a connection has reached last
_looking: dict[tuple["SoughtPrimary", Hashable], asyncio.Future[Place]] = {}  # by who looks, too
ASK_S: Final = 1.0  # how long one server may take to answer; a stopped one accepts the connection and stays silent


class SoughtPrimary(NamedTuple):
    """Several servers, and the namespace whose primary they have."""

    url: str
    namespace: str


class NamedPrimary(NamedTuple):
    """The primary's address, as one server says. The highest `rank` is the newest."""

    rank: tuple[int, int]
    node: Node


async def of(place: Place, namespace: str) -> Place:
    """The place with the address of the primary in place of several. Raises `ConnectionError` if none is known."""
    several = servers(place.url)
    if several is None:
        return place
    if several.name:
        asked = [_sentinel(several, node, place) for node in several.nodes]
        enough = len(asked) // 2 + 1  # a majority has the newest election among its answers
    elif several.cluster:
        asked = [_of_slot(several, node, place, namespace) for node in several.nodes]
        enough = len(asked) // 2 + 1  # one that knows an older owner is corrected by what that one answers: MOVED
    else:
        asked = [_member(several, node, place, namespace) for node in several.nodes]
        enough = len(asked)
    told = await _answers(asked, enough)
    if not told:
        who = "none of the servers is one"
        if several.name:
            who = "no Sentinel names one"
        elif several.cluster:
            who = f"no node names the owner of slot {slot_of(namespace)}, in which the namespace {namespace!r} lies"
        raise ConnectionError(f"there is no primary at {hidden(place.url)}: {who}")
    return replace(place, url=several.url(max(told).node))


def of_quietly(place: Place, namespace: str) -> Place:
    """The same, for a thread without an event loop."""
    return place if servers(place.url) is None else asyncio.run(of(place, namespace))


def entry(place: Place) -> dict[str, str]:
    """Credentials and certificates, as arguments of redis-py."""
    given = {"username": place.username, "password": place.secret, "ssl_ca_data": place.ca}
    given |= {"ssl_certfile": place.client, "ssl_keyfile": place.client}
    return {name: value for name, value in given.items() if value}


async def ask_node(url: str, *commands: tuple[str, ...], place: Place) -> list[Any]:
    """The answers of one server at `url`, which takes the credentials and certificates of the place. Each answer is as
    it came; an error that the server gave is among them.

    Raises what the client raises where the server does not answer within `ASK_S`.
    """
    given: dict[str, Any] = {"socket_timeout": ASK_S, "socket_connect_timeout": ASK_S, **entry(place)}
    client = Redis.from_url(url, protocol=2, retry=Retry(NoBackoff(), 0), **given)
    client.response_callbacks.clear()
    try:
        async with asyncio.timeout(ASK_S):
            pipeline = client.pipeline(transaction=False)
            for command in commands:
                pipeline.execute_command(*command)
            return list(await pipeline.execute(raise_on_error=False))
    finally:
        await client.aclose()


def pairs(row: Any) -> dict[str, str]:
    """A reply of names and values, one after the other."""
    texts = [each.decode() if isinstance(each, bytes) else str(each) for each in row]
    return dict(zip(texts[::2], texts[1::2], strict=True))


async def ask_sentinel(several: SeveralServers, node: Node, place: Place, *commands: tuple[str, ...]) -> list[Any]:
    """The answers of one Sentinel, as `ask_node`. Without a password of its own in the URL it has Redis's, or none."""
    url = replace(several, user="", database="").url(node)
    own = replace(place, username=several.sentinel_user, secret=several.sentinel_secret or place.secret)
    try:
        return await ask_node(url, *commands, place=own)
    except AuthenticationError:
        if several.sentinel_secret:
            raise
        return await ask_node(url, *commands, place=replace(place, username=None, secret=None))


def named_in(found: Mapping[str, str]) -> NamedPrimary:
    """The primary that a Sentinel names (SENTINEL MASTER), by the election that it knows of."""
    return NamedPrimary((int(found["config-epoch"]), 0), (found["ip"], int(found["port"])))


async def _sentinel(several: SeveralServers, node: Node, place: Place) -> NamedPrimary | None:
    [row] = await ask_sentinel(several, node, place, ("SENTINEL", "MASTER", several.name))
    return None if isinstance(row, Exception) else named_in(pairs(row))


async def _of_slot(several: SeveralServers, node: Node, place: Place, namespace: str) -> NamedPrimary | None:
    [about] = await ask_node(several.url(node), NODES, place=place)
    named = None if isinstance(about, Exception) else owner(about.decode(), slot_of(namespace))
    if named is None:
        return None
    epoch, (host, port) = named
    return NamedPrimary((epoch, 0), (host or node[0], port))


async def _member(several: SeveralServers, node: Node, place: Place, namespace: str) -> NamedPrimary | None:
    """Of two that call themselves primary, as a restarted one does for a while, the one of the later epoch is."""
    asked = ("INFO", "replication"), ("HGET", f"{{{namespace}}}:epoch", "number")
    about, number = await ask_node(several.url(node), *asked, place=place)
    if isinstance(about, Exception) or b"role:master" not in about:
        return None
    known = 0 if number is None or isinstance(number, Exception) else int(number)
    return NamedPrimary((known, int(b"connected_slaves:0" not in about)), node)


async def _answers(asked: list[Any], enough: int) -> list[NamedPrimary]:
    """The answers that say something, as soon as `enough` servers have answered."""
    tasks = [asyncio.ensure_future(each) for each in asked]
    told, done = list[NamedPrimary](), set[asyncio.Future[NamedPrimary | None]]()
    try:
        left = set(tasks)
        while left and len(told) < enough:
            done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            told += [said for task in done if task.exception() is None and (said := task.result()) is not None]
            for task in done:
                if (error := task.exception()) and not isinstance(error, RedisError | OSError | ValueError | KeyError):
                    raise error
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return told


def electing(
    kind: Any,
    where: Callable[[], Awaitable[Place]],
    move: Callable[[Any, Place], None],
    at: SoughtPrimary,
    who: Hashable,
) -> Any:
    """The class of asyncio connections that look for the primary before each connect. `who` has the credentials that
    `where` answers with: connections of others look for themselves.

    An old primary that is cut off from the others answers reads for as long as anybody asks. So what one connection of
    this process has found, all others of the same source follow at their next command.
    """

    class ElectingConnection(kind):  # type: ignore[misc]
        in_cluster = in_cluster(at.url)
        _greeted = False

        def left(self) -> bool:
            return self._greeted and _found[at] != (self.host, self.port)

        async def _connect(self) -> None:
            self._greeted = False
            move(self, await _shared((at, who), where))
            await super()._connect()

        async def on_connect_check_health(self, check_health: bool = True) -> None:
            await super().on_connect_check_health(check_health=check_health)
            await self.send_command("HELLO")
            must_be_primary(self, await self.read_response())
            self._greeted = True
            _found[at] = self.host, self.port

    return ElectingConnection


async def _shared(look: tuple[SoughtPrimary, Hashable], where: Callable[[], Awaitable[Place]]) -> Place:
    """One look for all connections that want one at a time: each look asks every server, and many would come late."""
    looking = _looking.get(look)
    if looking is None or looking.done() or looking.get_loop() is not asyncio.get_running_loop():
        looking = _looking[look] = asyncio.ensure_future(where())
        looking.add_done_callback(lambda done: done.cancelled() or done.exception())  # also where nobody waits any more
    return await asyncio.shield(looking)


def electing_quietly(
    kind: Any, where: Callable[[], Place], move: Callable[[Any, Place], None], at: SoughtPrimary
) -> Any:
    """The same for threads: a heartbeat that stays at an old primary renews no lease of the new one."""

    class ElectingConnection(kind):  # type: ignore[misc]
        _greeted = False

        def _connect(self) -> Any:
            self._greeted = False
            move(self, where())
            return super()._connect()

        def on_connect_check_health(self, check_health: bool = True) -> None:
            super().on_connect_check_health(check_health=check_health)
            self.send_command("HELLO")
            must_be_primary(self, self.read_response())
            self._greeted = True
            _found[at] = self.host, self.port

        def send_packed_command(self, *args: Any, **options: Any) -> None:
            if self._greeted and _found[at] != (self.host, self.port):
                self.disconnect()
            super().send_packed_command(*args, **options)

    return ElectingConnection


def must_be_primary(connection: Any, greeting: Any) -> None:
    """Raises `ConnectionError` for a greeting (HELLO) of a replica."""
    if (role := pairs(greeting[: len(greeting) // 2 * 2]).get("role")) != "master":
        raise ConnectionError(f"{connection.host}:{connection.port} is a {role}, no primary")
