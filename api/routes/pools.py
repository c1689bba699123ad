"""The pools of a tenant: their inference backends, and the policy version that these serve."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from api.operations import operation
from api.request.parameters import filled, flag
from api.request.references import PoolRef
from api.service import Service
from prorl_mq.schema import addresses
from prorl_mq.schema.ids import TenantId, public, tenant_of
from prorl_mq.schema.intake import Address, Directory, UpdateMode, Version, WireProtocol
from prorl_mq.schema.messages import Name
from prorl_mq.schema.policy import PolicyStatus
from prorl_mq.store import pools
from prorl_mq.store.pools import BackendInfo, BackendStatus
from prorl_mq.store.store import Store


class BackendRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One inference endpoint. Without a protocol the workers find it out."""

    address: Address
    protocol: WireProtocol | None = None
    model: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    adapter: Name | None = None  # a LoRA adapter of the model, which is the pool's policy
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None  # jobs in flight at most

    def __post_init__(self) -> None:
        addresses.parse(self.address)


class BackendAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """State of a backend after the call: `joined`, `known`, `draining` or `left`."""

    pool: str
    address: str
    state: str


class BackendList(msgspec.Struct, frozen=True, kw_only=True):
    """The backends of a pool, least loaded first."""

    backends: Sequence[BackendStatus]


class PolicyRequest(msgspec.Struct, frozen=True, kw_only=True):
    """New weights. `mode` says what becomes of turns under way.

    With `weights`, a directory as the backends see it, the service has every backend load them: vLLM's in dev mode,
    SGLang's, or an adapter's.
    """

    version: Version
    mode: UpdateMode = "keep"
    weights: Directory | None = None


class PoolNow(msgspec.Struct, frozen=True, kw_only=True):
    """One pool: its backends, least loaded first, and the policy that they were told to serve."""

    policy: PolicyStatus
    backends: Sequence[BackendStatus]


class PoolList(msgspec.Struct, frozen=True, kw_only=True):
    """The pools of a tenant, by name."""

    pools: Sequence[PoolNow]


@operation("GET", "/v1/pools")
async def list_pools(store: Store, tenant: TenantId) -> PoolList:
    """The caller's pools with their backends and policy versions."""
    found = [
        PoolNow(policy=await pools.policy_status(store, name), backends=await pools.listing(store, name))
        for name in await pools.names(store)
        if tenant_of(name) == tenant
    ]
    return PoolList(pools=found)


@operation(
    "POST",
    "/v1/pools/{pool}/backends",
    answers={201: "It joined", 200: "It was known; it is described again"},
    errors=(403, 409),
)
async def add_backend(
    service: Service, store: Store, pool: PoolRef, backend: BackendRequest
) -> tuple[int, BackendAnswer]:
    """Add a backend to a pool, or change what is known of it.

    403: the tenant may not add this address. 409: it is in use in another tenant's pool.
    """
    about = BackendInfo(
        address=backend.address,
        protocol=backend.protocol,
        model=backend.model,
        adapter=backend.adapter,
        limit=backend.limit,
    )
    state = await service.registrar.add(store, pool, about)
    return 201 if state == "joined" else 200, _now(pool, backend.address, state)


@operation("GET", "/v1/pools/{pool}/backends")
async def list_backends(store: Store, pool: PoolRef) -> BackendList:
    """The backends of a pool and the jobs in flight on each."""
    return BackendList(backends=await pools.listing(store, pool))


@operation("DELETE", "/v1/pools/{pool}/backends")
async def remove_backend(
    store: Store,
    pool: PoolRef,
    address: Annotated[str, filled("that of the backend to remove", "The address that the backend was added with")],
    drain: Annotated[bool, flag("true: it gets no new jobs and leaves when its last one has ended")] = False,
) -> BackendAnswer:
    """Take a backend out of a pool, now or when its last job has ended."""
    return _now(pool, address, await pools.remove(store, pool, address, drain=drain))


@operation("POST", "/v1/pools/{pool}/policy")
async def announce_policy_version(store: Store, pool: PoolRef, policy: PolicyRequest) -> PolicyStatus:
    """Announce the policy version that a pool serves from now on."""
    await store.announce(pool, policy.version, policy.mode, policy.weights or "")
    return await pools.policy_status(store, pool)


@operation("GET", "/v1/pools/{pool}/policy")
async def policy_status(store: Store, pool: PoolRef) -> PolicyStatus:
    """The announced version of a pool, and the progress of its backends."""
    return await pools.policy_status(store, pool)


def _now(pool: PoolRef, address: str, state: str) -> BackendAnswer:
    return BackendAnswer(pool=public(pool), address=address.rstrip("/"), state=state)
