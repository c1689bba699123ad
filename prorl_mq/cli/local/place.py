"""The Redis of a state directory's service: `up` leaves its address there, other commands find it."""

import argparse
import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from prorl_mq.cli.local.settings import redis_settings
from prorl_mq.errors import ConfigurationError
from prorl_mq.store.server.connection import RedisSettings

FILE: Final = "redis.json"
NAMESPACE: Final = "prorl"  # where none is given


class GivenRedis(msgspec.Struct, frozen=True, kw_only=True):
    """A server that this command does not run. Credentials are left out: they come from the environment."""

    url: str
    namespace: str


@contextlib.contextmanager
def left(state_dir: Path, redis: RedisSettings | None) -> Iterator[None]:
    """While the service runs, its directory names the server; None: it is the service's own, which has a socket."""
    file = state_dir / FILE
    file.unlink(missing_ok=True)
    if redis is not None:
        url = re.sub(r"://[^/@]*@", "://", redis.url)
        file.write_bytes(msgspec.json.encode(GivenRedis(url=url, namespace=redis.namespace)))
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
        return redis_settings(place.url, place.namespace if given.namespace == NAMESPACE else given.namespace)
    if socket.exists():
        return redis_settings(f"unix://{socket}", given.namespace)
    raise ConfigurationError(f"no service runs in {given.state_dir}: start one with `prorl-mq up`, or give --redis URL")
