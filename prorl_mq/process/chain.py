"""A chain of Redis servers on this machine, primary → replica → spare, with Sentinels that promote.

Replicated mode on a laptop, and what the tests of fail-overs run on.

Everything listens on loopback and asks for one password, which lies in files for their owner alone. The order of the
chain is kept in a file; at a start the server of the highest epoch is the primary, whatever that file says.
"""

import asyncio
import contextlib
import json
import os
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from prorl_mq.clock import monotonic
from prorl_mq.errors import ConfigurationError, ServerUnfit
from prorl_mq.process.children import Say
from prorl_mq.process.ports import free_port
from prorl_mq.process.redis_server import configuration, die_with_parent, locked, stop
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import RedisSettings
from prorl_mq.store.server.faults import RedisError
from prorl_mq.store.server.nodes import ChainNode, SentinelFacts

NAME: Final = "prorl"  # by which the Sentinels know the primary
SENTINELS: Final = 3
LOOK_S: Final = 0.5
START_S: Final = 30.0
NODE: Final = """\
include {base}
bind {host}
port {port}
dir {directory}
logfile {directory}/redis.log
daemonize no
requirepass {secret}
masterauth {secret}
min-replicas-to-write 1
min-replicas-max-lag 2
repl-ping-replica-period 1
repl-diskless-sync-delay 0
repl-backlog-size 64mb
"""
SENTINEL: Final = """\
bind {host}
port {port}
dir {directory}
logfile {directory}/sentinel.log
daemonize no
requirepass {secret}
sentinel sentinel-pass {secret}
sentinel monitor {name} {primary} 2
sentinel known-replica {name} {replica}
sentinel auth-pass {name} {secret}
sentinel down-after-milliseconds {name} {down_after_ms}
sentinel failover-timeout {name} 3000
"""


class ChainServer(ChainNode):
    """The process of a server, with its directory."""

    def __init__(self, binary: str, directory: Path, secret: str) -> None:
        super().__init__(free_port(), secret)
        self.directory = directory
        self.process: subprocess.Popen[bytes] | None = None
        self.inside: tuple[str, ...] = ()  # what its command line begins with, in tests
        self.environment: Mapping[str, str] = {}
        self.lines = ""  # at the end of its configuration
        self._binary = binary

    def start(self, text: str, *words: str) -> None:
        """Writes the configuration and starts the process."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = self.directory / "server.conf"
        file.unlink(missing_ok=True)
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.write(text + self.lines)
        self.process = subprocess.Popen(
            [*self.inside, self._binary, str(file), *words],
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 - one libc call
        )

    @property
    def ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def stop(self) -> None:
        if self.process is not None:
            stop(self.process)


class Chain:
    """Data servers in `nodes` by their place in the file of the order, and Sentinels."""

    def __init__(
        self, directory: Path, binary: str, *, namespace: str, say: Say, replicas: int = 2, down_after_ms: int = 1_000
    ) -> None:
        """`replicas`: 2, a replica and a spare, or more of these."""
        if replicas < 2:
            raise ConfigurationError(
                "--replicas needs 2 at least: a replica that is promoted takes writes with a spare"
            )
        self.secret = secret = secrets.token_urlsafe(24)
        self.nodes = [ChainServer(binary, directory / f"node-{place}", secret) for place in range(replicas + 1)]
        self.sentinels = [ChainServer(binary, directory / f"sentinel-{place}", secret) for place in range(SENTINELS)]
        self.order = list(range(replicas + 1))  # the newest order that was seen, from the primary on
        self.down_after_ms = down_after_ms
        self._directory = directory
        self._namespace = namespace
        self._say = say
        self._stopping = asyncio.Event()

    @property
    def settings(self) -> RedisSettings:
        """The address by which clients find the primary."""
        places = ",".join(f"{each.host}:{each.port}" for each in self.sentinels)
        one = self.sentinels[0]
        url = f"{one.scheme}+sentinel://{places}/{NAME}{one.query}"
        return RedisSettings(url=url, namespace=self._namespace, password=self.secret)

    @property
    def pids(self) -> dict[str, int]:
        named = {f"redis-{place}": each for place, each in enumerate(self.nodes)}
        named |= {f"sentinel-{place}": each for place, each in enumerate(self.sentinels)}
        return {name: each.process.pid for name, each in named.items() if each.process and not each.ended}

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[RedisSettings]:
        """The servers, kept in a chain until the context ends. Raises `ConfigurationError`, `ServerUnfit`."""
        with locked(self._directory):
            try:
                await self.start()
                keeping = asyncio.create_task(self._keep())
                try:
                    yield self.settings
                finally:
                    self._stopping.set()
                    await keeping
            finally:
                await asyncio.to_thread(self.stop)

    def kill(self) -> None:
        """SIGTERM to all: they end in order, whatever clients they have."""
        self._stopping.set()
        for each in (*self.sentinels, *self.nodes):
            if each.process is not None:
                each.process.terminate()

    def stop(self) -> None:
        """The Sentinels first, which would promote; then from the primary on, so that each replica has everything."""
        for each in (*self.sentinels, *(self.nodes[place] for place in self.order)):
            each.stop()

    async def start(self) -> None:
        """Starts every node alone, which then takes no writes; forms the chain; starts the Sentinels."""
        for place in self.order:
            self.start_node(place)
        await asyncio.gather(*(self._answers(node) for node in self.nodes))
        saved = self._saved()
        key = Keys(self._namespace).epoch
        numbers = {place: await self.nodes[place].epoch(key) for place in self.order}
        self.order.sort(key=lambda place: (-numbers[place], saved.index(place)))
        for before, place in zip(self.order, self.order[1:], strict=False):
            await self.nodes[place].follow(self.nodes[before])
        await self._linked()
        self._save()
        for each in self.sentinels:
            await self.start_sentinel(each)
        await self._watched()

    def start_node(self, place: int, *, follows: ChainNode | None = None) -> None:
        """`follows`: its primary; a node without one takes no writes before a replica follows it."""
        node = self.nodes[place]
        text = NODE.format(
            base=configuration(), host=node.host, port=node.port, directory=node.directory, secret=self.secret
        )
        if follows is not None:
            text += f"replicaof {follows.host} {follows.port}\n"
        node.start(text)

    async def start_sentinel(self, sentinel: ChainServer) -> None:
        primary, replica = (self.nodes[place] for place in self.order[:2])
        text = SENTINEL.format(
            host=sentinel.host, port=sentinel.port, directory=sentinel.directory, secret=self.secret, name=NAME,
            primary=f"{primary.host} {primary.port}", replica=f"{replica.host} {replica.port}",
            down_after_ms=self.down_after_ms,
        )  # fmt: skip
        sentinel.start(text, "--sentinel")
        await self._answers(sentinel)
        await sentinel.tune()

    async def primary(self) -> int | None:
        """The node that most Sentinels name; None where they name none."""
        named = [each.port for each in await self._seen()]
        ports = [node.port for node in self.nodes]
        agreed = [port for port in set(named) if 2 * named.count(port) > len(self.sentinels) and port in ports]
        return ports.index(agreed[0]) if agreed else None

    async def repair(self) -> None:
        """One look: after a fail-over the old primary is the end of the chain; what has ended starts again there."""
        blind = await asyncio.gather(*(self._tilted(each) for each in self.sentinels))
        for each, tilted in zip(self.sentinels, blind, strict=True):
            if tilted:
                self._say(f"the Sentinel at port {each.port} starts again: its clock has jumped, or it stood still")
                await asyncio.to_thread(each.stop)
            if each.ended:
                await self.start_sentinel(each)
        now = await self.primary()
        if now is None:
            return
        if now != self.order[0]:
            place = self.order.index(now)
            self.order = [*self.order[place:], *self.order[:place]]
            self._save()
            self._say(f"Redis has failed over to {self.nodes[now].host}:{self.nodes[now].port}")
        for before, place in zip(self.order, self.order[1:], strict=False):
            await self._follow(place, before)
        if any(each.replicas > 1 for each in await self._seen()):
            await self._forget_others()

    async def _tilted(self, sentinel: ChainServer) -> bool:
        """One that does not answer is left alone: the chain must not wait for it."""
        with contextlib.suppress(RedisError, OSError):
            return not sentinel.ended and await sentinel.tilted()
        return False

    async def _follow(self, place: int, before: int) -> None:
        """Lets a node follow the one before it. The first replica is the Sentinels' business: it may be the primary of
        the next moment.
        """
        node, leader = self.nodes[place], self.nodes[before]
        if node.ended:
            self.start_node(place, follows=leader)
            await self._answers(node)
        elif place != self.order[1]:
            with contextlib.suppress(RedisError, OSError):
                await node.follow(leader)

    async def _forget_others(self) -> None:
        """Lets the Sentinels look again where one knows more than the chain has: it keeps replicas that have left, and
        attaches them to the primary again after its time for a fail-over. So all are told at once, right after the
        replicas.
        """
        for before, place in zip(self.order[1:], self.order[2:], strict=False):
            await self._follow(place, before)
        told = await asyncio.gather(*(each.forget(NAME) for each in self.sentinels), return_exceptions=True)
        for error in told:
            if isinstance(error, BaseException) and not isinstance(error, RedisError | OSError):
                raise error

    async def _seen(self) -> list[SentinelFacts]:
        """Facts of each Sentinel that answers."""
        told = await asyncio.gather(*(self._facts(each) for each in self.sentinels))
        return [facts for facts in told if facts is not None]

    async def _facts(self, sentinel: ChainServer) -> SentinelFacts | None:
        with contextlib.suppress(RedisError, OSError):
            return await sentinel.seen(NAME)
        return None

    async def _keep(self) -> None:
        while not self._stopping.is_set():
            try:
                await self.repair()
            except (RedisError, OSError, ServerUnfit) as error:
                self._say(f"the chain of Redis servers is looked at again: {error}")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._stopping.wait()

    async def _answers(self, server: ChainServer) -> None:
        give_up = monotonic() + START_S
        while True:
            with contextlib.suppress(RedisError, OSError):
                await server.ping()
                return
            if server.ended or monotonic() > give_up:
                log = next(server.directory.glob("*.log"), None)
                said = log.read_text(errors="replace")[-800:] if log is not None else ""
                raise ServerUnfit(f"a Redis server does not start in {server.directory}:\n{said}")
            await asyncio.sleep(0.02)

    async def _linked(self) -> None:
        give_up = monotonic() + START_S
        for place in self.order[1:]:
            while not await self.nodes[place].linked():
                if monotonic() > give_up:
                    raise ServerUnfit(f"the Redis server in {self.nodes[place].directory} does not follow its primary")
                await asyncio.sleep(0.02)

    async def _watched(self) -> None:
        """Each Sentinel knows the replica and the other Sentinels, and so can promote it."""
        give_up = monotonic() + START_S
        for each in self.sentinels:
            while True:
                seen = await each.seen(NAME)
                if seen.replicas == 1 and seen.others == len(self.sentinels) - 1:
                    break
                if monotonic() > give_up:
                    raise ServerUnfit(f"the Sentinel in {each.directory} does not see the replica and the others")
                await asyncio.sleep(0.02)

    def _saved(self) -> Sequence[int]:
        with contextlib.suppress(OSError, ValueError):
            saved: list[int] = json.loads((self._directory / "order.json").read_text())
            if sorted(saved) == sorted(self.order):
                return saved
        return list(self.order)

    def _save(self) -> None:
        new = self._directory / "order.json.new"
        new.write_text(json.dumps(self.order))
        new.replace(self._directory / "order.json")
