"""The inference backends of a pool, and the policy version that they serve."""

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from api import parameters
from api.bodies import read_body, render
from api.operations import JSON, MSGPACK, Answer, Operation, Parameter, name_in_path
from api.problems import Problem
from api.references import pool_of, pool_ref_of
from api.service import service_of
from prorl_mq.schema.intake import Address, Directory, UpdateMode, Version, WireProtocol
from prorl_mq.schema.policy import PolicyStatus
from prorl_mq.store import pools
from prorl_mq.store.pools import BackendStatus


class BackendRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One inference endpoint. Without a protocol the workers find it out."""

    address: Address
    protocol: WireProtocol | None = None
    model: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None  # jobs in flight at most


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

    With `weights`, a directory as the backends see it, the service has every backend load them (vLLM's dev mode).
    """

    version: Version
    mode: UpdateMode = "keep"
    weights: Directory | None = None


async def add(request: Request) -> Response:
    pool, body = pool_of(request), await read_body(request, BackendRequest)
    store = service_of(request).store
    state = await pools.add(
        store, pool_ref_of(request), body.address, protocol=body.protocol, model=body.model, limit=body.limit
    )
    answer = BackendAnswer(pool=pool, address=body.address.rstrip("/"), state=state)
    return render(request, answer, 201 if state == "joined" else 200)


async def remove(request: Request) -> Response:
    pool, drain = pool_of(request), parameters.flag(request, "drain")
    address = request.query_params.get("address")
    if not address:
        raise Problem(422, "the parameter 'address' is missing: say which backend is to leave", field="address")
    state = await pools.remove(service_of(request).store, pool_ref_of(request), address, drain=drain)
    return render(request, BackendAnswer(pool=pool, address=address.rstrip("/"), state=state))


async def listing(request: Request) -> Response:
    found = await pools.listing(service_of(request).store, pool_ref_of(request))
    return render(request, BackendList(backends=found))


async def announce(request: Request) -> Response:
    body = await read_body(request, PolicyRequest)
    await service_of(request).store.announce(pool_ref_of(request), body.version, body.mode, body.weights or "")
    return await policy(request)


async def policy(request: Request) -> Response:
    return render(request, await pools.policy_status(service_of(request).store, pool_ref_of(request)))


POOL: Final = name_in_path("pool", "The name of a pool")
ADDRESS: Final = Parameter(
    name="address",
    where="query",
    schema={"type": "string", "minLength": 1},
    description="The address that the backend was added with",
    required=True,
)
DRAIN: Final = Parameter(
    name="drain",
    where="query",
    schema={"type": "boolean", "default": False},
    description="true: it gets no new jobs and leaves when its last one has ended",
)
BOTH: Final = (JSON, MSGPACK)

OPERATIONS = (
    Operation(
        method="POST",
        path="/v1/pools/{pool}/backends",
        id="add_backend",
        tag="pools",
        summary="Add a backend to a pool, or change what is known of it",
        endpoint=add,
        parameters=(POOL,),
        body=BackendRequest,
        answers={
            201: Answer(description="It joined", body=BackendAnswer, media_types=BOTH),
            200: Answer(description="It was known; it is described again", body=BackendAnswer, media_types=BOTH),
        },
        errors=(400, 404, 413, 415, 422, 503),
    ),
    Operation(
        method="GET",
        path="/v1/pools/{pool}/backends",
        id="list_backends",
        tag="pools",
        summary="The backends of a pool and the jobs in flight on each",
        endpoint=listing,
        parameters=(POOL,),
        answers={200: Answer(description="Least loaded first", body=BackendList, media_types=BOTH)},
        errors=(404, 422, 503),
    ),
    Operation(
        method="DELETE",
        path="/v1/pools/{pool}/backends",
        id="remove_backend",
        tag="pools",
        summary="Take a backend out of a pool, now or when its last job has ended",
        endpoint=remove,
        parameters=(POOL, ADDRESS, DRAIN),
        answers={200: Answer(description="It leaves", body=BackendAnswer, media_types=BOTH)},
        errors=(404, 422, 503),
    ),
    Operation(
        method="POST",
        path="/v1/pools/{pool}/policy",
        id="announce_policy_version",
        tag="pools",
        summary="Announce the policy version that a pool serves from now on",
        endpoint=announce,
        parameters=(POOL,),
        body=PolicyRequest,
        answers={200: Answer(description="It is announced", body=PolicyStatus, media_types=BOTH)},
        errors=(400, 404, 413, 415, 422, 503),
    ),
    Operation(
        method="GET",
        path="/v1/pools/{pool}/policy",
        id="policy_status",
        tag="pools",
        summary="The announced version of a pool, and the progress of its backends",
        endpoint=policy,
        parameters=(POOL,),
        answers={200: Answer(description="As it is now", body=PolicyStatus, media_types=BOTH)},
        errors=(404, 422, 503),
    ),
)
