"""The steps of a run's move from one cell to another, for the router and by an operator's token alone."""

from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from api.operations import operation
from api.problems import Problem
from api.request.bodies import MSGPACK, read_bytes
from api.service import caller_of, service_of
from prorl_mq.errors import Conflict, InvalidBatch, NotFound
from prorl_mq.rules.reach import ANY
from prorl_mq.schema.ids import RunRef, public
from prorl_mq.schema.messages import Name
from prorl_mq.store.moves import moving, pages
from prorl_mq.store.moves.pages import RunPage
from prorl_mq.store.store import Store
from prorl_mq.store.verbs.moves import DepartedRun

PAGE_BYTES: Final = 256 << 20


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


class Vacating(msgspec.Struct, frozen=True, kw_only=True):
    """The departure of a run that another cell has now."""

    id: str


class Arriving(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a run's arrival from a cell. `mover` names who makes this move; the last one that begins does."""

    cell: Name
    mover: Name


class MoveStep(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a step. `id`: the departure by which the run is here. `files`: whether this cell takes some."""

    state: str
    id: str = ""
    files: bool = True


def _operator(request: Request) -> None:
    """Raises `Problem` (403) for a tenant without its operator's rights: it could write what no check has seen."""
    if service_of(request).registrar.rights.of(caller_of(request).tenant, has_user=True) is not None:
        detail = f'only an operator moves runs: a token whose tenant has backends = ["{ANY}"] in the tokens file'
        raise Problem(403, detail, kind="operators-only")


@operation("GET", "/v1/runs/{run}/departure")
async def departure_of_run(store: Store, run: RunRef) -> Departure:
    """The departure of a run that has left for another cell, while its keys are still here. For the router."""
    found = await moving.left(store, run)
    if found is None:
        raise NotFound(f"run {public(run)!r} is not leaving")
    return Departure(id=found.id, cell=found.cell)


@operation("PUT", "/v1/runs/{run}/departure", errors=(403, 409))
async def depart_run(request: Request, store: Store, run: RunRef, departing: Departing) -> Departure:
    """Have a run leave for another cell: nothing of it begins for ten seconds, and 409 says what is still in flight."""
    _operator(request)
    found = await moving.depart(store, run, departing.cell, files=departing.files)
    if not isinstance(found, DepartedRun):
        what = ", ".join(f"{count} {name}" for name, count in found.items())
        raise Conflict(f"run {public(run)!r} cannot leave yet, in flight are: {what}. Move it again, with more time")
    return Departure(id=found.id, cell=found.cell)


@operation("POST", "/v1/runs/{run}/departure/page", errors=(403,), returns=RunPage, media_types=(MSGPACK,))
async def read_departed(request: Request, store: Store, run: RunRef, order: PageOrder) -> Response:
    """A page of what a run that has left is made of."""
    _operator(request)
    found = await pages.page(store, run, order.id, order.after)
    return Response(msgspec.msgpack.encode(found), media_type=MSGPACK)


@operation("POST", "/v1/runs/{run}/departure/vacate", errors=(403,))
async def vacate_run(request: Request, store: Store, run: RunRef, vacating: Vacating) -> MoveStep:
    """Remove what is left of a run that another cell has, but for a note of that cell."""
    _operator(request)
    return MoveStep(state=await moving.clear(store, run, vacating.id))


@operation("PUT", "/v1/runs/{run}/arrival", errors=(403,))
async def expect_run(request: Request, store: Store, run: RunRef, arriving: Arriving) -> MoveStep:
    """Begin to take a run over from another cell, before it leaves that: `begun`, or `here`."""
    _operator(request)
    state, departure = await store.arrive(run, "begin", mover=arriving.mover, cell=arriving.cell)
    return MoveStep(state=state, id=departure, files=await moving.takes_files(store))


@operation("POST", "/v1/runs/{run}/arrival/page", errors=(400, 403, 413), returns=MoveStep)
async def take_page(request: Request, store: Store, run: RunRef) -> MoveStep:
    """Write a page of a run that arrives, in MessagePack; with the last one the run is opened."""
    _operator(request)
    try:
        sent = msgspec.msgpack.decode(await read_bytes(request, PAGE_BYTES), type=_Sent)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidBatch(f"the body is no page of a run: {error}") from None
    state, departure = await moving.take(store, run, sent.mover, sent.id, sent.page)
    return MoveStep(state=state, id=departure)


class _Sent(msgspec.Struct, frozen=True, kw_only=True):
    mover: str
    id: str
    page: RunPage
