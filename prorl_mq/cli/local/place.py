"""The API and the Redis of a state directory's service: `up` leaves their addresses there, other commands find them."""

import argparse
import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from prorl_mq import local_token
from prorl_mq.cli.local.settings import redis_settings
from prorl_mq.errors import ConfigurationError
from prorl_mq.store.server.connection import RedisSettings

FILE: Final = "redis.json"
NAMESPACE: Final = "prorl"  # where none is given


class GivenRedis(msgspec.Struct, frozen=True, kw_only=True):
    """Servers that have no socket in the directory. Credentials of given ones come from the environment; the service's
    own chain has a password of its own.
    """

    url: str
    namespace: str
    password: str | None = None


@contextlib.contextmanager
def left(state_dir: Path, redis: RedisSettings | None, *, own: bool = False) -> Iterator[None]:
    """While the service runs, its directory names the server; None: it is the service's own, which has a socket.
    `own`: a chain that the service runs, whose password is left there for its owner alone.
    """
    file = state_dir / FILE
    file.unlink(missing_ok=True)
    if redis is not None:
        url = re.sub(r"://[^/@]*@", "://", redis.url)
        about = GivenRedis(url=url, namespace=redis.namespace, password=redis.password if own else None)
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(msgspec.json.encode(about))
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


@contextlib.contextmanager
def listening(state_dir: Path, url: str) -> Iterator[None]:
    """While the service runs, its directory names the address of its API."""
    file = state_dir / local_token.ADDRESS
    file.write_text(url)
    file.chmod(0o644)  # whatever the umask: clients believe none that others may write
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def redis_of(given: argparse.Namespace) -> RedisSettings:
    """The server that was named, else that of the service in the state directory. Raises `ConfigurationError`."""
    if given.redis:
        return redis_settings(given.redis, given.namespace)
    socket, file = given.state_dir.absolute() / "redis" / "redis.sock", given.state_dir / FILE
    if file.exists():
        place = msgspec.json.decode(file.read_bytes(), type=GivenRedis)
        namespace = place.namespace if given.namespace == NAMESPACE else given.namespace
        return redis_settings(place.url, namespace, password=place.password)
    if socket.exists():
        return redis_settings(f"unix://{socket}", given.namespace)
    raise ConfigurationError(f"no service runs in {given.state_dir}: start one with `prorl-mq up`, or give --redis URL")
