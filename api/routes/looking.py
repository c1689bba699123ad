"""The service as a whole, and the pools of a tenant."""

from collections.abc import Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from api.bodies import render
from api.operations import JSON, MSGPACK, Answer, Operation
from api.service import service_of, tenant_of
from prorl_mq.schema.policy import PolicyStatus
from prorl_mq.service.overview import Overview
from prorl_mq.store import pools as backends
from prorl_mq.store.pools import BackendStatus


class PoolNow(msgspec.Struct, frozen=True, kw_only=True):
    """One pool: its backends, least loaded first, and the policy that they were told to serve."""

    policy: PolicyStatus
    backends: Sequence[BackendStatus]


class PoolList(msgspec.Struct, frozen=True, kw_only=True):
    """The pools of a tenant, by name."""

    pools: Sequence[PoolNow]


async def overview(request: Request) -> Response:
    return render(request, await service_of(request).overview.get())


async def pools(request: Request) -> Response:
    store, tenant = service_of(request).store, tenant_of(request)
    found = [
        PoolNow(policy=await backends.policy_status(store, name), backends=await backends.listing(store, name))
        for name in await backends.names(store)
        if name.partition(":")[0] == tenant
    ]
    return render(request, PoolList(pools=found))


BOTH = (JSON, MSGPACK)
OPERATIONS = (
    Operation(
        method="GET",
        path="/v1/overview",
        id="overview",
        tag="watching",
        summary="What waits and runs in each stage and on each node, and how fast; a second old at most",
        endpoint=overview,
        answers={200: Answer(description="Of the whole service", body=Overview, media_types=BOTH)},
        errors=(422, 503),
    ),
    Operation(
        method="GET",
        path="/v1/pools",
        id="list_pools",
        tag="pools",
        summary="The caller's pools with their backends and policy versions",
        endpoint=pools,
        answers={200: Answer(description="By name", body=PoolList, media_types=BOTH)},
        errors=(422, 503),
    ),
)
