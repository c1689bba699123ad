"""The rendezvous: a file on shared storage that says where a service is now, and with which secret to enter.

It is written by rename, so that nobody reads half of it, and for its owner's eyes alone. Whoever connects reads it
again, since the service may have moved. A shared file system that is away changes nothing: what was read last holds.
"""

import asyncio
import contextlib
import os
import secrets
import stat
from pathlib import Path
from typing import Final

import msgspec

from prorl_mq.clock import monotonic
from prorl_mq.errors import ConfigurationError, RedisUnavailable

LOOK_S: Final = 0.5  # between looks at a file that is not there: network file systems tell of nothing
READ_S: Final = 5.0  # how long a hanging file system is waited for
_SEEN: dict[Path, "Place"] = {}  # what each file said last, for as long as this process lives
_KEPT: dict[Path, list[tuple[bytes, int]]] = {}  # the last two contents of each client's file, and where they lie


class Place(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Place of a service. `secret` is a Redis user's password or the API's bearer token, `ca` certificates in PEM.

    `client` is a file with the key and the certificate of who connects: written, its name beside the rendezvous; read,
    a copy in this process's memory, which outlives the shared storage.
    """

    url: str
    username: str | None = None
    secret: str | None = None
    ca: str | None = None
    client: str | None = None
    nonce: str = msgspec.field(default_factory=lambda: secrets.token_hex(8))  # differs each time it is written


def publish(path: Path, place: Place) -> None:
    """Writes the file, in place of what it said before."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(msgspec.json.encode(place))
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise


def read(path: Path) -> Place:
    """Reads the file. Raises `OSError` where it cannot be read, `ConfigurationError` where it is wrong."""
    with path.open("rb") as file:
        if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
            raise ConfigurationError(f"{path} can be read by others: chmod 600 it, or write it again")
        try:
            place = msgspec.json.decode(file.read(), type=Place)
        except msgspec.MsgspecError as error:
            raise ConfigurationError(f"{path} is no rendezvous file: {error}") from None
    if place.client is not None:
        place = msgspec.structs.replace(place, client=_kept(path.parent / place.client))
    _SEEN[path] = place
    return place


def _kept(file: Path) -> str:
    """A copy of a file, which only this process can open; the file, under a limit on the size of files.

    A copy that may still be in use is left.
    """
    content, copies = file.read_bytes(), _KEPT.setdefault(file, [])
    if not copies or copies[-1][0] != content:
        memory = os.memfd_create(file.name)
        if not _written(memory, content):
            os.close(memory)
            return str(file)
        copies.append((content, memory))
        if len(copies) > 2:  # the one before may be about to be read
            os.close(copies.pop(0)[1])
    return f"/proc/self/fd/{copies[-1][1]}"


def _written(memory: int, content: bytes) -> bool:
    """True where it took all of it. RLIMIT_FSIZE holds for memory too, and cuts what crosses it."""
    try:
        return os.write(memory, content) == len(content)
    except OSError:
        return False


def known(path: Path) -> Place:
    """The content of the file when it was last read; reads it the first time. Raises `ConfigurationError`."""
    if path in _SEEN:
        return _SEEN[path]
    try:
        return read(path)
    except OSError as error:
        raise ConfigurationError(f"the rendezvous {path} cannot be read: {error.strerror}") from None


async def refreshed(path: Path) -> Place:
    """The content of the file now or, where it cannot be read in time, when it was last read."""
    with contextlib.suppress(OSError, TimeoutError, ConfigurationError):
        async with asyncio.timeout(READ_S):
            return await asyncio.to_thread(read, path)
    return known(path)


async def appeared(path: Path, *, within_ms: int) -> Place:
    """Waits for the file. Raises `RedisUnavailable` when it has not come in time."""
    give_up = monotonic() + within_ms / 1000
    while True:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, TimeoutError):
            async with asyncio.timeout(READ_S):
                return await asyncio.to_thread(read, path)
        if monotonic() >= give_up:
            raise RedisUnavailable(
                f"the rendezvous {path} has not appeared for {within_ms / 1000:.0f} s: start what writes it, "
                "or check that this host sees the directory"
            )
        await asyncio.sleep(LOOK_S)
