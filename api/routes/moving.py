"""The steps of a run's move from one cell to another, for the router and by an operator's token alone."""

from typing import Annotated, Final, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from api.operations import operation
from api.problems import Problem
from api.request.bodies import MSGPACK, read_bytes
from api.request.parameters import text
from api.request.references import NAME
from api.service import caller_of, service_of
from prorl_mq.errors import Conflict, InvalidBatch
from prorl_mq.rules.reach import ANY
from prorl_mq.schema.ids import RunRef, TenantId, public, run_ref
from prorl_mq.schema.messages import Name
from prorl_mq.schema.status import RunPlace
from prorl_mq.store.moves import moving, pages
from prorl_mq.store.moves.pages import RunPage
from prorl_mq.store.store import Store
from prorl_mq.store.verbs.moves import DepartedRun

PAGE_BYTES: Final = 256 << 20
Tenant = Annotated[str, text(NAME, "the name of a tenant", "Another tenant, whose run it is; for operators")]


class Departing(msgspec.Struct, frozen=True, kw_only=True):
    """The cell that a run is to leave for. `files`: false if that has no directory for a run's payload files."""

    cell: Name
    files: bool = True


class Departure(msgspec.Struct, frozen=True, kw_only=True):
    """A run that has left for a cell, and whose keys are still here."""

    id: str
    cell: str


class PageOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Which page of a run that has left. `after`: what the page before has given; empty for the first."""

    id: str
    after: str = ""


class ByDeparture(msgspec.Struct, frozen=True, kw_only=True):
    """The departure of a run that another cell has now."""

    id: str


class Returning(msgspec.Struct, frozen=True, kw_only=True):
    """A departure that is to be undone: `ask` does so unless the other cell may have opened the run; then that one is
    asked to refuse it, and has (`sure`) or has it open (`keep`).
    """

    id: str
    step: Literal["ask", "sure", "keep"] = "ask"


class Arriving(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a run's arrival from a cell. `mover` names who makes this move; the last one that begins does. `id`:
    the departure, once it has left.
    """

    cell: Name
    mover: Name
    id: str = ""


class Refusing(msgspec.Struct, frozen=True, kw_only=True):
    """A departure by which a run shall arrive no more, since `cell` takes it back."""

    cell: Name
    mover: Name
    id: str


class MoveStep(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a step. `id`: the departure by which the run is here. `files`: whether this cell takes some."""

    state: str
    id: str = ""
    files: bool = True


def moved(request: Request, run: RunRef, tenant: str) -> RunRef:
    """The run that an operator moves: of the caller's tenant, or of the one that is named.

    Raises `Problem` (403) for a tenant without its operator's rights: it could write what no check has seen.
    """
    if service_of(request).registrar.rights.of(caller_of(request).tenant, has_user=True) is not None:
        detail = (
            "only an operator moves runs, or sees where another tenant's are: a token whose tenant has "
            f'backends = ["{ANY}"] in the tokens file'
        )
        raise Problem(403, detail, kind="operators-only")
    return run_ref(TenantId(tenant), public(run)) if tenant else run


@operation("GET", "/v1/runs/{run}/arrival", errors=(403,))
async def place_of_run(request: Request, store: Store, run: RunRef, tenant: Tenant = "") -> RunPlace:
    """Say where this cell sees a run: here, elsewhere, or on its way. For the router."""
    return await moving.whereabouts(store, moved(request, run, tenant) if tenant else run)


@operation("PUT", "/v1/runs/{run}/departure", errors=(403, 409))
async def depart_run(
    request: Request, store: Store, run: RunRef, departing: Departing, tenant: Tenant = ""
) -> Departure:
    """Have a run leave for another cell: nothing of it begins for ten seconds, and 409 says what is still in flight."""
    run = moved(request, run, tenant)
    found = await moving.depart(store, run, departing.cell, files=departing.files)
    if not isinstance(found, DepartedRun):
        what = ", ".join(f"{count} {name}" for name, count in found.items())
        raise Conflict(f"run {public(run)!r} cannot leave yet, in flight are: {what}. Move it again, with more time")
    return Departure(id=found.id, cell=found.cell)


@operation("POST", "/v1/runs/{run}/departure/page", errors=(403, 409), returns=RunPage, media_types=(MSGPACK,))
async def read_departed(request: Request, store: Store, run: RunRef, order: PageOrder, tenant: Tenant = "") -> Response:
    """A page of what a run that has left is made of. With the last one the other cell may open it."""
    found = await pages.page(store, moved(request, run, tenant), order.id, order.after)
    return Response(msgspec.msgpack.encode(found), media_type=MSGPACK)


@operation("POST", "/v1/runs/{run}/departure/vacate", errors=(403,))
async def vacate_run(
    request: Request, store: Store, run: RunRef, vacating: ByDeparture, tenant: Tenant = ""
) -> MoveStep:
    """Remove what is left of a run that another cell has, but for a note of that cell."""
    return MoveStep(state=await moving.clear(store, moved(request, run, tenant), vacating.id))


@operation("POST", "/v1/runs/{run}/departure/back", errors=(403,))
async def return_run(
    request: Request, store: Store, run: RunRef, returning: Returning, tenant: Tenant = ""
) -> MoveStep:
    """Take a run back that has left and has not arrived: `restored`; `given`: the other cell may have opened it."""
    state = await store.restore(moved(request, run, tenant), returning.id, returning.step)
    return MoveStep(state=state)


@operation("PUT", "/v1/runs/{run}/arrival", errors=(403,))
async def expect_run(request: Request, store: Store, run: RunRef, arriving: Arriving, tenant: Tenant = "") -> MoveStep:
    """Begin to take a run over from another cell, before it leaves that: `begun`, or `here`."""
    run = moved(request, run, tenant)
    state, by = await store.arrive(run, "begin", mover=arriving.mover, cell=arriving.cell, departure=arriving.id)
    return MoveStep(state=state, id=by, files=await moving.takes_files(store))


@operation("POST", "/v1/runs/{run}/arrival/page", errors=(400, 403, 413), returns=MoveStep)
async def take_page(request: Request, store: Store, run: RunRef, tenant: Tenant = "") -> MoveStep:
    """Write a page of a run that arrives, in MessagePack; with the last one the run is opened."""
    run = moved(request, run, tenant)
    try:
        sent = msgspec.msgpack.decode(await read_bytes(request, PAGE_BYTES), type=_Sent)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidBatch(f"the body is no page of a run: {error}") from None
    state, departure = await moving.take(store, run, sent.mover, sent.id, sent.page, first=sent.first)
    return MoveStep(state=state, id=departure)


@operation("POST", "/v1/runs/{run}/arrival/refuse", errors=(403,))
async def refuse_run(request: Request, store: Store, run: RunRef, refusing: Refusing, tenant: Tenant = "") -> MoveStep:
    """Let a run arrive here no more by a departure that is undone: `refused`, or `here`."""
    run = moved(request, run, tenant)
    return MoveStep(state=await moving.refuse(store, run, refusing.id, refusing.mover, refusing.cell))


@operation("POST", "/v1/runs/{run}/arrival/over", errors=(403,))
async def end_move(request: Request, store: Store, run: RunRef, ending: ByDeparture, tenant: Tenant = "") -> MoveStep:
    """Forget the departure of a run that its old cell has removed."""
    state, _ = await store.arrive(moved(request, run, tenant), "over", mover="", departure=ending.id)
    return MoveStep(state=state)


class _Sent(msgspec.Struct, frozen=True, kw_only=True):
    mover: str
    id: str
    page: RunPage
    first: bool = False
