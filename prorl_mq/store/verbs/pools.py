"""The verbs of backend pools: one typed method for each script. Each may be sent twice."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from prorl_mq.store.core import Core, text

SEATS_MS: Final = 120_000  # how long a ledger stays that nobody writes
HISTORY: Final = 128  # announced versions that a pool remembers


class PoolVerbs(Core):
    """Backends come, are observed and go; the policy version of a pool changes."""

    async def join(self, pool: str, address: str, about: bytes, *, limit: int = 0) -> str:
        """Adds a backend to a pool: `joined` or `known`. `limit`: jobs in flight at most, 0 for any number."""
        names = [self.keys.pool(pool), self.keys.pool_info(pool), self.keys.pools]
        return text(await self.call("join", names, {"pool": pool, "address": address, "limit": limit}, about))

    async def leave(self, pool: str, address: str, *, reason: str, drain: bool, sweep: bool = False) -> str:
        """Takes a backend out, with `drain` once no job holds it: `left`, `draining`, `unknown`, or `kept`.

        `sweep` touches none but one that is draining, or has left and was still held.
        """
        names = [self.keys.pool(pool), self.keys.pool_info(pool)]
        arguments = {"address": address, "reason": reason, "drain": drain, "sweep": sweep}
        return text(await self.call("leave", names, arguments))

    async def observe(
        self,
        pool: str | None,
        address: str,
        *,
        was: str,
        breaker: str,
        restart: bool = False,
        facts: Mapping[str, str] | None = None,
    ) -> list[bytes]:
        """Writes down what was seen of a backend: `[b'observed']`, `[b'changed', breaker]` or `[b'gone']`.

        Without a pool, of an image or a task family, which stands in the place of the address.
        """
        arguments = {
            "address": address, "was": was, "breaker": breaker, "restart": restart,
            "facts": list((facts or {}).items()),
        }  # fmt: skip
        where = self.keys.breakers if pool is None else self.keys.pool_info(pool)
        return list(await self.call("observe", [where], arguments))

    async def seat(self, pool: str, *, seen: str, stamp: str, seats: Sequence[tuple[str, str]]) -> list[Any]:
        """Writes seats of a pool's ledger down, which has not changed since its stamp was `seen`: `[b'seated', ms]`,
        `[b'already', ms]` or `[b'changed', ms, seats]`. `seats`: by token; one without a text leaves.
        """
        arguments = {"seen": seen, "stamp": stamp, "seats": list(seats), "ttl_ms": SEATS_MS}
        return list(await self.call("seat", [self.keys.seats(pool)], arguments))

    async def announce(self, pool: str, version: int, mode: str, weights: str) -> str:
        """Records the policy version of a pool: `announced` or `already`."""
        arguments = {"version": str(version), "mode": mode, "weights": weights, "history": HISTORY}
        names = [self.keys.policy(pool), self.keys.policy_update(pool)]
        return text(await self.call("announce", names, arguments))

    async def progress(self, pool: str, announcement: str, address: str, about: bytes) -> str:
        """Notes how far a backend is with announced weights: `noted` or `stale`."""
        names = [self.keys.policy(pool), self.keys.policy_update(pool)]
        return text(await self.call("progress", names, {"id": announcement, "address": address}, about))
