"""Backends join a pool: which addresses its tenant may add, and that two tenants never have one address.

Whoever controls a pool pauses its backends and loads weights into them, so an address belongs to one tenant. The
operator may add any address to any pool; a tenant's own entry for it leaves then.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import msgspec

from prorl_mq import resolver
from prorl_mq.errors import AddressRefused, Conflict
from prorl_mq.rules.reach import ANY, Reach, places, reached
from prorl_mq.schema import addresses
from prorl_mq.schema.addresses import BackendAddress
from prorl_mq.schema.ids import DEFAULT_TENANT, tenant_of
from prorl_mq.store import pools
from prorl_mq.store.pools import BackendInfo
from prorl_mq.store.store import Store

OPERATOR_S: Final = 1.0  # how long the addresses behind a name of the operator's are waited for
UNDECLARED: Final = (
    "{place} is not added: no addresses are declared for tenant {tenant}, whose backends the operator adds; for its "
    'own the operator writes backends = ["HOST:PORT", ...] below [tenants.{tenant}] of the tokens file'
)
Listeners = Callable[[], Awaitable[Sequence[str]]]


class Rights(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's declarations. Without tokens there is one user, who is the operator."""

    declared: Mapping[str, tuple[str, ...] | None] = {}  # by tenant; None: nothing was said, so nothing is allowed
    closed: bool = False  # tenants have tokens: who is not declared is none but a tenant

    def of(self, tenant: str, *, has_user: bool) -> Reach | None:
        """None for who has the operator's rights. `has_user`: the tenant has a Redis user of its own."""
        if tenant not in self.declared and not self.closed and (tenant == DEFAULT_TENANT or not has_user):
            return None
        entries = self.declared.get(tenant) or ()
        return None if entries == (ANY,) else Reach(declared=entries)


async def no_listeners() -> Sequence[str]:
    return ()


class Registrar:
    """Takes backends into pools. `listeners` are the places, HOST:PORT, where the service itself listens."""

    def __init__(self, rights: Rights | None = None, listeners: Listeners = no_listeners) -> None:
        self.rights = rights or Rights()
        self._listeners = listeners

    async def add(self, store: Store, pool: str, about: BackendInfo, *, has_user: bool = False) -> str:
        """`joined` or `known`. Raises `ValueError` for what is no address, `AddressRefused`, or `Conflict`.

        What the operator added to the pool may be described again by its tenant.
        """
        address = addresses.parse(about.address)
        about = msgspec.structs.replace(about, address=about.address.rstrip("/"))
        reach = self.rights.of(tenant_of(pool), has_user=has_user)
        if reach is None or await _is_operators(store, pool, about.address):
            return await self._added_by_operator(store, pool, about, address)
        if not reach.declared:
            raise AddressRefused(UNDECLARED.format(place=address.place, tenant=tenant_of(pool)))
        reach = msgspec.structs.replace(reach, listeners=tuple(await self._listeners()))
        found = await reached(address, reach)
        about = msgspec.structs.replace(about, reach=reach, places=places(address, found))
        await _check_owner(store, pool, about)
        state = await pools.join(store, pool, about)
        try:
            await _check_owner(store, pool, about)  # of two at once, at least one sees the other
        except Conflict:
            await store.leave(pool, about.address, reason="its address is another's", drain=False)
            raise
        return state

    async def _added_by_operator(self, store: Store, pool: str, about: BackendInfo, address: BackendAddress) -> str:
        try:
            found = await resolver.look_up(address.host, within_s=OPERATOR_S)
        except (OSError, UnicodeError):  # it is called as it is, whatever its name means then
            found = ()
        about = msgspec.structs.replace(about, places=places(address, found))
        state = await pools.join(store, pool, about)
        for other, each in await _elsewhere(store, pool, about):
            if each.reach is not None:
                await store.leave(other, each.address, reason="the operator gave it to another pool", drain=False)
        return state


async def _is_operators(store: Store, pool: str, address: str) -> bool:
    seen = (await pools.view(store, pool)).backends.get(address)
    return seen is not None and seen.info is not None and seen.info.reach is None


async def _check_owner(store: Store, pool: str, about: BackendInfo) -> None:
    if await _elsewhere(store, pool, about):
        raise Conflict(f"backend {about.address!r} cannot join: its address is in use in another tenant's pool")


async def _elsewhere(store: Store, pool: str, about: BackendInfo) -> list[tuple[str, BackendInfo]]:
    """Backends of other tenants at one of the same places, each with its pool."""
    tenant, mine = tenant_of(pool), set(about.places)
    found = []
    for other in await pools.names(store):
        if tenant_of(other) != tenant:
            known = [seen.info for seen in (await pools.view(store, other)).backends.values() if seen.info is not None]
            found += [(other, each) for each in known if mine.intersection(_known_places(each))]
    return found


def _known_places(about: BackendInfo) -> Sequence[str]:
    """An earlier release kept the address alone, and took more of them."""
    try:
        return about.places or (addresses.parse(about.address).place,)
    except ValueError:
        return ()
