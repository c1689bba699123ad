"""The owner of a sandbox, as its label says: an attempt of a job, or a warm pool, of one service."""

from enum import StrEnum
from typing import NamedTuple
from urllib.parse import quote, unquote


class OwnerKind(StrEnum):
    JOB = "job"
    POOL = "pool"


class Owner(NamedTuple):
    """`service` tells apart the services that share a state directory: it is their namespace in Redis."""

    kind: OwnerKind
    service: str
    name: str  # of a job: which attempt; of a pool: which shape

    @property
    def text(self) -> str:
        """The text for the label."""
        return f"{self.kind} {quote(self.service)} {self.name}"


def parse(text: str) -> Owner | None:
    """None for what no service wrote: a check by hand, a test."""
    kind, _, rest = text.partition(" ")
    service, _, name = rest.partition(" ")
    return Owner(OwnerKind(kind), unquote(service), name) if kind in set(OwnerKind) else None
