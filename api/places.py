"""Requests that wait have places: so many of one process, with a part for each tenant."""

from collections import Counter
from typing import Final

from api.problems import Problem
from prorl_mq.schema.ids import TenantId

POLLS: Final = 2_000  # requests of one process that wait for results
STREAMS: Final = 500  # event streams that one process sends


class Places:
    """Places of requests that wait. The last quarter is for tenants that hold less than an equal share of all."""

    def __init__(self, count: int, tenants: int, what: str) -> None:
        self.count = count
        self._share = -(-count // max(tenants, 1))
        self._what = what
        self._held = Counter[TenantId]()

    @property
    def free(self) -> int:
        return self.count - self._held.total()

    def take(self, tenant: TenantId) -> None:
        """Takes a place; `give` it back. Raises `Problem` (429) where there is none for this tenant."""
        held, limit = self._held[tenant], self.count if self._held[tenant] < self._share else self.count * 3 // 4
        if self._held.total() >= limit:
            detail = f"{self._held.total()} {self._what} this process, {held} of them yours: end one, or try again"
            raise Problem(429, detail, kind="over-quota", headers={"Retry-After": "5"})
        self._held[tenant] += 1

    def give(self, tenant: TenantId) -> None:
        self._held[tenant] -= 1
        if not self._held[tenant]:
            del self._held[tenant]
