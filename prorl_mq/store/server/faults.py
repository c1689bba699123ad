"""Faults that a command may raise: those of Redis, named so that callers of the store need no client library."""

from enum import Enum, auto
from typing import Final

from redis.exceptions import AuthenticationError, NoPermissionError, OutOfMemoryError, RedisError

from prorl_mq.errors import RedisUnavailable
from prorl_mq.store.core import NO_EPOCH
from prorl_mq.store.server.connection import OUTAGES, passing

__all__ = ["FAULTS", "OUTAGES", "FaultKind", "RedisError", "is_everybodys", "kind_of"]

FAULTS: Final = (RedisUnavailable, RedisError, *OUTAGES)
REFUSING: Final = ("MISCONF", "CLUSTERDOWN", "MASTERDOWN", "NOREPLICAS", "NOAUTH", "NOPERM", "WRONGPASS")


class FaultKind(Enum):
    """Kind of a fault, by what the caller can do about it."""

    FULL = auto()  # acknowledge results, or give Redis more memory
    AWAY = auto()  # try again
    REFUSED = auto()  # read the log: the command was wrong


def is_everybodys(error: Exception) -> bool:
    """True if a fault meets every command alike: Redis is away, full, or refuses this process."""
    refused = isinstance(error, AuthenticationError | NoPermissionError | OutOfMemoryError)
    return refused or isinstance(error, RedisUnavailable) or passing(error) or str(error).startswith(NO_EPOCH)


def kind_of(error: Exception) -> FaultKind:
    """The kind of a `RedisError`, or of one of the `OUTAGES`."""
    said = str(error)
    if isinstance(error, OutOfMemoryError) or "OOM" in said[:40]:
        return FaultKind.FULL
    return FaultKind.AWAY if isinstance(error, OUTAGES) or said.startswith(REFUSING) else FaultKind.REFUSED
