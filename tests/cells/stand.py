"""Three primaries and three replicas of a real cluster on loopback, each a process of its own."""

import asyncio
import contextlib
import itertools
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Final

from redis.exceptions import RedisError

from prorl_mq.process.chain import ChainServer
from prorl_mq.process.ports import free_port
from prorl_mq.process.redis_server import configuration, find_binary
from prorl_mq.store.server.cluster import owner, slot_of
from prorl_mq.store.server.connection import RedisSettings
from tests.ha.stand import until

PRIMARIES: Final = 3
SECRET: Final = "cells"
SLOTS: Final = 16_384
NODE: Final = """\
include {base}
bind 127.0.0.1
port {port}
cluster-port {bus}
dir {directory}
logfile {directory}/redis.log
daemonize no
requirepass {secret}
masterauth {secret}
cluster-enabled yes
cluster-node-timeout 2000
cluster-require-full-coverage no
cluster-allow-replica-migration no
repl-diskless-sync-delay 0
"""


class Cluster:
    """Nodes by their place: the first three are primaries of a third of the slots each, the others their replicas."""

    def __init__(self, directory: Path, binary: str, lines: str = "") -> None:
        self.nodes = [ChainServer(binary, directory / f"node-{place}", SECRET) for place in range(2 * PRIMARIES)]
        self._ids = list[str]()
        self._lines = lines

    def settings(self, namespace: str) -> RedisSettings:
        places, any_node = ",".join(f"{node.host}:{node.port}" for node in self.nodes), self.nodes[0]
        url = f"{any_node.scheme}+cluster://{places}{any_node.query}"
        return RedisSettings(url=url, namespace=namespace, password=SECRET)

    async def start(self) -> None:
        for node in self.nodes:
            text = NODE.format(
                base=configuration(), port=node.port, bus=free_port(), directory=node.directory, secret=SECRET
            )
            node.lines = text + node.lines + self._lines
            node.start("")
        for node in self.nodes:
            await until(lambda node=node: _answers(node))  # type: ignore[misc]
        self._ids = [(await node.ask("CLUSTER", "MYID")).decode() for node in self.nodes]
        third = SLOTS // PRIMARIES + 1
        for place, node in enumerate(self.nodes):
            if place < PRIMARIES:
                last = min((place + 1) * third, SLOTS) - 1
                await node.ask("CLUSTER", "ADDSLOTSRANGE", str(place * third), str(last))
                await node.ask("CLUSTER", "SET-CONFIG-EPOCH", str(place + 1))
            bus = node.lines.partition("cluster-port ")[2].partition("\n")[0]
            if place:
                await self.nodes[0].ask("CLUSTER", "MEET", node.host, str(node.port), bus)
        await until(self._all_met)
        for place in range(PRIMARIES):
            await self.nodes[PRIMARIES + place].ask("CLUSTER", "REPLICATE", self._ids[place])
        await until(self._whole)

    def replica_of(self, place: int) -> int:
        """The first replica of a primary, before any fail-over."""
        return PRIMARIES + place

    def kill(self, place: int) -> None:
        process = self.nodes[place].process
        assert process is not None
        process.kill()
        process.wait()

    async def restart(self, place: int) -> None:
        self.nodes[place].start("")
        await until(lambda: _answers(self.nodes[place]))

    def namespaces(self, count: int) -> list[str]:
        """Names of which each lies on the next primary, before any slot was moved."""
        third, names = SLOTS // PRIMARIES + 1, list[str]()
        for number in itertools.count():
            name = f"ns-{number}"
            if slot_of(name) // third == len(names) % PRIMARIES:
                names.append(name)
            if len(names) == count:
                break
        return names

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()

    async def owner(self, namespace: str) -> int:
        """The place of the node that owns a namespace's slot, as the nodes know that live."""
        found = []
        for node in self.nodes:
            with contextlib.suppress(RedisError, OSError):
                found.append(owner((await node.ask("CLUSTER", "NODES")).decode(), slot_of(namespace)))
        [*_, (_, (_, port))] = sorted(each for each in found if each is not None)
        return [node.port for node in self.nodes].index(port)

    async def move(self, namespace: str) -> None:
        """Moves the slot of a namespace as a whole to another primary, and waits for it. Valkey 9 alone can."""
        place, slot = await self.owner(namespace), str(slot_of(namespace))
        to = await self._another(place)
        await self.nodes[place].ask("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", self._ids[to])
        await until(lambda: self._owns(namespace, to))

    async def move_key_by_key(self, namespace: str) -> Sequence[int]:
        """Begins the older way of a move: nothing has been sent yet. The places of the two nodes."""
        place, slot = await self.owner(namespace), str(slot_of(namespace))
        to = await self._another(place)
        await self.nodes[to].ask("CLUSTER", "SETSLOT", slot, "IMPORTING", self._ids[place])
        await self.nodes[place].ask("CLUSTER", "SETSLOT", slot, "MIGRATING", self._ids[to])
        return place, to

    async def fail_over(self, namespace: str) -> None:
        """The replica of a namespace's owner takes its place, in order. It is a primary from then on."""
        place = await self.owner(namespace)
        [heir] = [each for each in range(len(self.nodes)) if await self._follows(each, place)]
        await self.nodes[heir].ask("CLUSTER", "FAILOVER")
        await until(lambda: self._owns(namespace, heir))

    async def _another(self, place: int) -> int:
        for each in (*range(place + 1, len(self.nodes)), *range(place)):
            if b"role:master" in await self._replication(each):
                return each
        raise AssertionError("there is one primary alone")

    async def _follows(self, place: int, other: int) -> bool:
        return b"master_port:%d\r" % self.nodes[other].port in await self._replication(place)

    async def _replication(self, place: int) -> bytes:
        """As a node tells of it. On a busy machine an answer comes late now and then: it is asked for again."""
        await until(lambda: _answers(self.nodes[place]))
        about: bytes = await self.nodes[place].ask("INFO", "replication")
        return about

    async def move_no_more(self, namespace: str, places: Sequence[int]) -> None:
        for place in places:
            await self.nodes[place].ask("CLUSTER", "SETSLOT", str(slot_of(namespace)), "STABLE")

    async def _owns(self, namespace: str, place: int) -> bool:
        return await self.owner(namespace) == place

    async def _all_met(self) -> bool:
        for node in self.nodes:
            about: bytes = await node.ask("CLUSTER", "NODES")
            if about.count(b" connected") != len(self.nodes) or b"handshake" in about:
                return False
        return True

    async def _whole(self) -> bool:
        for place, node in enumerate(self.nodes):
            about = (await node.ask("CLUSTER", "NODES")).decode()
            if about.count("slave ") != PRIMARIES or b"cluster_state:ok" not in await node.ask("CLUSTER", "INFO"):
                return False
            if place >= PRIMARIES and not await node.linked():
                return False
        return True


async def _answers(node: ChainServer) -> bool:
    with contextlib.suppress(RedisError, OSError):
        await node.ping()
        return True
    return False


@contextlib.asynccontextmanager
async def cluster(
    *, lines: str = "", binary: str = "", prepared: Callable[[Sequence[ChainServer], Path], None] | None = None
) -> AsyncIterator[Cluster]:
    """Of the embedded Valkey, which moves slots as a whole, or of another `binary`. `lines`: at the end of every node's
    configuration. `prepared` is called with the nodes before they start.
    """
    directory = Path(tempfile.mkdtemp(prefix="cells"))
    made = Cluster(directory, binary or find_binary(), lines)
    try:
        if prepared is not None:
            prepared(made.nodes, directory)
        await made.start()
        yield made
    finally:
        await asyncio.to_thread(made.stop)
        shutil.rmtree(directory, ignore_errors=True)
