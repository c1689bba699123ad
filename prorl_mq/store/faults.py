"""What a command may raise: the faults of Redis under names that callers of the store need no client library for."""

from enum import Enum, auto
from typing import Final

from redis.exceptions import RedisError

from prorl_mq.errors import RedisUnavailable
from prorl_mq.store.connection import OUTAGES

__all__ = ["FAULTS", "OUTAGES", "Kind", "RedisError", "kind_of"]

FAULTS: Final = (RedisUnavailable, RedisError, OSError)
REFUSING: Final = ("MISCONF", "CLUSTERDOWN", "MASTERDOWN", "NOREPLICAS", "NOAUTH", "NOPERM", "WRONGPASS")


class Kind(Enum):
    """What the caller can do about a fault."""

    FULL = auto()  # acknowledge results, or give Redis more memory
    AWAY = auto()  # try again
    REFUSED = auto()  # read the log: the command was wrong


def kind_of(error: Exception) -> Kind:
    """The kind of a `RedisError` or `OSError`."""
    said = str(error)
    if "OOM" in said[:40]:
        return Kind.FULL
    return Kind.AWAY if isinstance(error, OUTAGES) or said.startswith(REFUSING) else Kind.REFUSED
