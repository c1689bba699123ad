"""Shares of an API process: so much of each kind for all requests, with a part for each tenant."""

from collections import Counter
from typing import Final, Self

from api.problems import Problem
from prorl_mq.schema.ids import TenantId

REQUESTS: Final = 512  # in work: from their token until their answer, or until they wait
BODIES: Final = 512 << 20  # bytes of their bodies
COMPAT: Final = 32  # times as much of both: calls of the compatible routes last as long as their rollouts
POLLS: Final = 2_000  # requests of one process that wait for results
STREAMS: Final = 500  # event streams that one process sends


class Places:
    """Places for requests. The last quarter is for tenants that hold less than an equal share of all."""

    def __init__(self, count: int, tenants: int, what: str, *, again_s: int = 5) -> None:
        self.count = count
        self.tenants = tenants
        self._what = what
        self._again_s = again_s
        self._held = Counter[TenantId]()

    @property
    def free(self) -> int:
        return self.count - self._held.total()

    def take(self, tenant: TenantId, amount: int = 1) -> None:
        """Takes places; `give` them back. Raises `Problem` (429) where there are none for this tenant."""
        held, share = self._held[tenant], -(-self.count // max(self.tenants, 1))
        limit = self.count if held + amount <= share else self.count * 3 // 4
        if self._held.total() + amount > limit:
            detail = (
                f"{self._held.total()} {self._what} this process, {held} of them yours: "
                "have fewer at once, or try again"
            )
            raise Problem(429, detail, kind="over-quota", headers={"Retry-After": str(self._again_s)})
        self._held[tenant] += amount

    def give(self, tenant: TenantId, amount: int = 1) -> None:
        self._held[tenant] -= amount
        if not self._held[tenant]:
            del self._held[tenant]


class Holding:
    """Places of several kinds that one request holds, until the end of the context."""

    __slots__ = ("_held", "tenant")

    def __init__(self, tenant: TenantId) -> None:
        self.tenant = tenant
        self._held: dict[Places, int] = {}

    def take(self, places: Places, amount: int = 1) -> None:
        """Raises `Problem` (429)."""
        places.take(self.tenant, amount)
        self._held[places] = self._held.get(places, 0) + amount

    def exchange(self, held: Places, places: Places) -> None:
        """Gives back what it has of one kind for a place of another. Raises `Problem` (429), and keeps what it has."""
        self.take(places)
        held.give(self.tenant, self._held.pop(held))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._held:
            places, amount = self._held.popitem()
            places.give(self.tenant, amount)
