"""Stands where redis-py's client stands: its pool, its time-outs and its errors, one call at a time on a connection."""

import asyncio
from collections.abc import Sequence
from typing import Any

from redis.exceptions import ConnectionError, ResponseError

from prorl_mq.store.server.connection import deadline, passing
from tests.simulation import thread
from tests.simulation.network import TICK_S, Link, Network
from tests.simulation.trace import Command


class Client:
    """What the product uses of redis-py's client, over simulated connections."""

    def __init__(self, network: Network, *, answer_s: float, connections: int) -> None:
        self.connection_pool = Pool(self)
        self._network = network
        self._answer_s = answer_s
        self._room = asyncio.Semaphore(connections)
        self._idle: list[Link] = []

    async def execute_command(self, *command: Any) -> Any:
        [reply] = await self._exchange([command], deadline(*command))
        if isinstance(reply, Exception):
            raise reply
        return reply

    def pipeline(self, transaction: bool = True) -> "Pipeline":
        return Pipeline(self)

    async def aclose(self) -> None:
        self._drop_idle()

    def _drop_idle(self) -> None:
        for link in self._idle:
            self._network.close(link)
        self._idle.clear()

    async def _exchange(self, commands: Sequence[Command], within_s: float | None = None) -> list[Any]:
        async with self._room:
            link = await self._connected()
            try:
                replies = await self._network.ask(link, commands, within_s or self._answer_s)
            except BaseException:
                self._network.close(link)
                raise
            if any(isinstance(reply, ResponseError) and passing(reply) for reply in replies):
                self._network.close(link)
            else:
                self._idle.append(link)
            return replies

    async def _connected(self) -> Link:
        while self._idle:
            link = self._idle.pop()
            if link.open:
                return link
        if self._network.weather.refused:
            await asyncio.sleep(TICK_S)
            raise ConnectionError("connection refused by the simulation")
        return self._network.link()


class Pool:
    """What the product asks of a client's pool: to drop what is idle."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def disconnect(self, inuse_connections: bool = True) -> None:
        self._client._drop_idle()


class Pipeline:
    """Commands sent together."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._commands: list[Command] = []

    def execute_command(self, *command: Any) -> None:
        self._commands.append(command)

    async def execute(self) -> list[Any]:
        replies = await self._client._exchange(self._commands)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies


class ThreadClient:
    """The same for a thread: each call blocks it."""

    def __init__(self, network: Network, answer_s: float) -> None:
        self._client = Client(network, answer_s=answer_s, connections=1)
        self.connection_pool = ThreadPool(self._client)

    def execute_command(self, *command: Any) -> Any:
        return thread.wait_for(self._client.execute_command(*command))

    def close(self) -> None:
        thread.wait_for(self._client.aclose())


class ThreadPool:
    """A thread's client's pool."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def disconnect(self) -> None:
        self._client._drop_idle()
