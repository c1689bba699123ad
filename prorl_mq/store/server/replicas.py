"""The replicas of a primary, as replicated mode needs them: a chain, primary → replica → spare, with Sentinels if any.

WAIT cannot tell replicas apart, and Sentinel promotes any of those that it knows. So one alone may follow the primary
directly: that one confirms, and that one is promoted. It takes writes at once, since the spare follows it already.
"""

import asyncio
import logging
import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Final, NamedTuple

from redis.exceptions import RedisError

from prorl_mq.schema.rendezvous import Place
from prorl_mq.servers import Node, SeveralServers, alone, in_cluster, servers
from prorl_mq.store.core import Repeat
from prorl_mq.store.server.cluster import NODES, slot_of, splits
from prorl_mq.store.server.connection import RedisSettings, ask, patiently
from prorl_mq.store.server.primary import NamedPrimary, ask_node, ask_sentinel, named_in, pairs
from prorl_mq.store.store import Store

log = logging.getLogger("prorl_mq.redis")

GUARD: Final = "min-replicas-to-write 1 and min-replicas-max-lag 2"
SOON_S: Final = 1.0  # between two looks in replicated mode
LATER_S: Final = 10.0  # elsewhere
TRIES: Final = 5  # before it is said that a server does not answer
# `online` is also one that has been sent everything and still loads it: it has acknowledged nothing.
_REPLICA: Final = re.compile(r"^slave\d+:ip=([^,]+),port=(\d+),state=(\w+)(?:,offset=(\d+))?", re.MULTILINE)


class Replication(NamedTuple):
    """One server as INFO shows it. `guarded`: it takes no writes without a replica that follows closely. `copying`: one
    that follows has not got everything yet.
    """

    followers: tuple[Node, ...]
    guarded: bool
    copying: bool = False


class SentinelView(NamedTuple):
    """The view of one Sentinel. `fault` is its answer to CKQUORUM where that is an error."""

    named: NamedPrimary
    replicas: int
    tilt: bool
    fault: str


class DurabilityMode(NamedTuple):
    """The mode of a namespace: how many replicas must confirm, 0 out of replicated mode; whether on their disks."""

    acks: int
    synced: bool


def standing(about: str) -> Replication:
    """Reads INFO replication; the server shows how many replicas follow closely where it needs some."""
    found = _REPLICA.findall(about)
    nodes = tuple((host, int(port)) for host, port, *_ in found)
    copying = any(state != "online" or offset == "0" for *_, state, offset in found)
    return Replication(nodes, guarded="min_slaves_good_slaves:" in about, copying=copying)


def faults(primary: Replication, follower: Replication | None, watches: Sequence[SentinelView | None]) -> list[str]:
    """Everything that keeps these servers from carrying replicated mode. `follower`: None where it did not answer."""
    return [*_of_chain(primary, follower), *_of_sentinels(watches)]


def _of_chain(primary: Replication, follower: Replication | None) -> Iterator[str]:
    count = len(primary.followers)
    if count == 0:
        yield "no replica follows the primary: start one with `replicaof`, and a spare that follows that one"
    if count > 1:
        names = ", ".join(f"{host}:{port}" for host, port in primary.followers)
        yield (
            f"{count} replicas follow the primary ({names}): let one alone do so, and the others follow that one "
            "(REPLICAOF), then SENTINEL RESET on each Sentinel"
        )
    if primary.copying:
        yield "a replica still copies what the primary has: wait until it is done"
    if not primary.guarded:
        yield f"the primary takes writes without a replica: set {GUARD} on every server"
    if count == 1 and follower is None:
        yield (
            "the replica does not answer this user: it needs the same ACL as the primary, and with TLS a certificate "
            "that names it"
        )
    if follower is not None and not follower.followers:
        yield "no spare follows the replica, which could take no writes when promoted: start one"
    if follower is not None and follower.copying:
        yield "a spare still copies what the replica has: wait until it is done"
    if follower is not None and not follower.guarded:
        yield f"the replica would take writes without a replica: set {GUARD} there"


def _of_sentinels(watches: Sequence[SentinelView | None]) -> Iterator[str]:
    told = [watch for watch in watches if watch is not None]
    if len(watches) > len(told):
        yield f"{len(watches) - len(told)} of {len(watches)} Sentinels do not answer"
    if 0 < len(watches) < 3:
        yield f"there are {len(watches)} Sentinels: with fewer than 3 the loss of one can stop every fail-over"
    yield from sorted({f"a Sentinel has no quorum: {watch.fault}" for watch in told if watch.fault})
    yield from sorted(set(_earlier([watch.named for watch in told])))
    if any(watch.tilt for watch in told):
        yield "a Sentinel is in TILT and promotes nobody for now: look at its clock and its load"
    if any(watch.replicas == 0 for watch in told):
        yield "a Sentinel does not know the replica yet: wait, or look at its password (sentinel auth-pass)"
    if any(watch.replicas > 1 for watch in told):
        yield "a Sentinel may promote a replica that does not confirm: SENTINEL RESET on each of them"


def _earlier(named: Sequence[NamedPrimary]) -> Iterator[str]:
    """Sentinels that name another primary than that of the latest election: who asks too few others is led there."""
    newest = max(named, default=None)
    for each in named:
        if newest is not None and each.rank < newest.rank and each.node != newest.node:
            (host, port), (now, now_port) = each.node, newest.node
            yield (
                f"Sentinels name different primaries, {host}:{port} and by a later election {now}:{now_port}: let them "
                "reach each other, or start those that are wrong with a new file"
            )


Seen = tuple[Replication, Replication | None, list[SentinelView | None]]


async def look_well(store: Store, settings: RedisSettings) -> Seen:
    """As `look`, again where a server does not answer: on a busy machine it may have been slow. What a Sentinel has
    answered at an earlier look counts.
    """
    primary, follower, known = await look(store, settings)
    for _ in range(TRIES - 1):
        if None not in known and (follower is not None or len(primary.followers) != 1):
            break
        primary, follower, watches = await look(store, settings)
        known = [new or old for new, old in zip_longest(watches, known)]
    return primary, follower, known


async def look(store: Store, settings: RedisSettings) -> Seen:
    """The primary, what follows it, and the Sentinels. Raises what the client raises for the primary alone."""
    about = (await ask(store.redis, "INFO", "replication")).decode()
    primary, place = standing(about), settings.named
    several = servers(place.url)
    follower = None
    if len(primary.followers) == 1:
        shape = several or alone(place.url)
        try:
            [said] = await ask_node(shape.url(primary.followers[0]), ("INFO", "replication"), place=place)
            follower = standing(said.decode()) if isinstance(said, bytes) else None
        except (RedisError, OSError):
            pass
    named = several.nodes if several is not None and several.name else ()
    watches = [_watch(several, node, place) for node in named] if several is not None else []
    return primary, follower, list(await asyncio.gather(*watches))


async def wanted(store: Store, settings: RedisSettings) -> int | None:
    """The number of replicas that must confirm; None where that cannot be told now, and stays as it is.

    More as soon as more follow; fewer when every Sentinel knows no other replica. Until then one that has left may be
    the new primary, and those that stay confirm what it will throw away.
    """
    primary, _, watches = await look(store, settings)
    there = max(1, len(primary.followers))
    if there >= (await required(store)):
        return there
    sure = all(watch is not None and watch.replicas <= there for watch in watches)
    return there if sure else None


async def keep(store: Store, settings: RedisSettings) -> None:
    """Brings the number of replicas that must confirm up to date, where the namespace is in replicated mode."""
    before = await required(store)
    count = await wanted(store, settings) if before else None
    if count is not None and count != before:
        await store.write("HSET", store.keys.epoch, "acks", count, repeat=Repeat.SAME)


async def turn(store: Store, settings: RedisSettings) -> float:
    """A duty: `keep`, in replicated mode alone; what it does not see in time a confirmation sees itself. In a cluster
    it closes the epoch while the slot is moved key by key.
    """
    in_slot = in_cluster(settings.named.url)
    if in_slot:
        await keep_whole(store)
    if not store.acks:
        return SOON_S if in_slot else LATER_S
    await keep(store, settings)
    return SOON_S


async def keep_whole(store: Store) -> None:
    """Closes the epoch where the namespace's slot is moved key by key: scripts would run whose keys are all still there
    while others wait, so that jobs are reaped that cannot be renewed. No other epoch opens before the keys lie on one
    node again (`open_epoch`).
    """
    about: bytes = await ask(store.redis, *NODES)
    if splits(about.decode(), slot_of(store.keys.namespace)):
        log.error(
            "slot %d is moved key by key: the namespace takes no writes until that has ended; use CLUSTER MIGRATESLOTS",
            slot_of(store.keys.namespace),
        )
        await ask(store.redis, "HSET", store.keys.epoch, "server", "")


async def switch(store: Store, acks: int, *, synced: bool = False) -> None:
    """Puts the namespace into replicated mode, or out of it (0). Its next epoch tells every process. `synced`: what is
    confirmed is on disks. Where that is so already nothing is written: a primary takes nothing while a replica is away.
    """
    before = await patiently(lambda: mode(store), outage_ms=store.outage_ms)
    if bool(before.acks) != bool(acks):
        await store.write("HSET", store.keys.epoch, "acks", acks, "server", "", repeat=Repeat.SAME)
        await store.open_epoch()
    if before.synced != synced:
        await store.write("HSET", store.keys.epoch, "synced", "1" if synced else "", repeat=Repeat.SAME)


async def required(store: Store) -> int:
    """The replicas that must confirm now; 0 out of replicated mode. Raises what the client raises."""
    return (await mode(store)).acks


async def mode(store: Store) -> DurabilityMode:
    """The mode of the namespace. Raises what the client raises."""
    acks, synced = await ask(store.redis, "HMGET", store.keys.epoch, "acks", "synced")
    return DurabilityMode(int(acks or 0), bool(synced))


async def _watch(several: SeveralServers, node: Node, place: Place) -> SentinelView | None:
    asked = ("SENTINEL", "MASTER", several.name), ("SENTINEL", "CKQUORUM", several.name), ("INFO", "sentinel")
    try:
        row, quorum, about = await ask_sentinel(several, node, place, *asked)
    except (RedisError, OSError):
        return None
    if isinstance(row, Exception) or isinstance(about, Exception):
        return None
    found, fault = pairs(row), str(quorum) if isinstance(quorum, Exception) else ""
    return SentinelView(named_in(found), int(found["num-slaves"]), b"sentinel_tilt:1" in about, fault)
