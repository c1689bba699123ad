"""The Redis server of `prorl-mq up`: one for each data directory, restarted if it dies."""

import asyncio
import contextlib
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

from prorl_mq.errors import ConfigurationError, ServerUnfit
from prorl_mq.process import redis_server
from prorl_mq.process.children import FIRST_WAIT_S, LONGEST_WAIT_S, Say
from prorl_mq.store.server.connection import RedisSettings

BINARIES = {"installed": redis_server.installed_binary, "embedded": redis_server.embedded_binary}


def binary(kind: str | None) -> str:
    """The program of a kind, or the one there is. Raises `ConfigurationError` when there is none."""
    if kind is None:
        return redis_server.find_binary()
    found = BINARIES[kind]()
    if found is None:
        cure = "install redis-server 7.0 or later" if kind == "installed" else "pip install 'prorl-mq[service]'"
        raise ConfigurationError(f"there is no {kind} Redis server on this machine: {cure}")
    return found


class RedisChild:
    """A server on DIRECTORY/redis.sock with its data beside it."""

    def __init__(self, directory: Path, program: str, *, namespace: str, say: Say) -> None:
        self.settings = RedisSettings(url=f"unix://{directory}/redis.sock", namespace=namespace)
        self._directory = directory
        self._program = program
        self._say = say
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = asyncio.Event()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[RedisSettings]:
        """The server, stopped on exit. Raises `ConfigurationError` if another one uses the directory."""
        socket = self._directory / "redis.sock"
        if len(os.fsencode(socket)) > redis_server.SOCKET_PATH_LIMIT:
            raise ConfigurationError(f"{socket} is too long for a Unix socket: choose a shorter --state-dir")
        with redis_server.locked(self._directory):
            await self._start()
            keeping = asyncio.create_task(self._keep())
            try:
                yield self.settings
            finally:
                self._stopping.set()
                if self._process is not None:
                    await asyncio.to_thread(redis_server.stop, self._process)
                await keeping

    def kill(self) -> None:
        """SIGTERM: it ends at once, in order, whatever clients it has."""
        self._stopping.set()
        if self._process is not None:
            self._process.terminate()

    async def _start(self) -> None:
        self._process = redis_server.start(self._program, self._directory)
        try:
            await redis_server.answering(self.settings, self._process, self._directory)
        except BaseException:
            await asyncio.to_thread(redis_server.stop, self._process)
            raise

    async def _keep(self) -> None:
        wait_s = FIRST_WAIT_S
        while self._process is not None:
            code = await asyncio.to_thread(self._process.wait)
            if self._stopping.is_set():
                return
            self._say(f"the Redis server ended with code {code}; it is restarted with its stored data")
            try:
                await self._start()
                wait_s = FIRST_WAIT_S
            except ServerUnfit as error:
                self._say(str(error))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._stopping.wait()
                wait_s = min(wait_s * 2, LONGEST_WAIT_S)
