"""Operations of the HTTP interface, each declared by a decorated coroutine.

    @operation("GET", "/v1/batches/{id}")
    async def batch_status(store: Store, batch: BatchRef) -> BatchStatus:
        \"\"\"The number of open groups of a batch, and the verdicts of the others.\"\"\"
        return await inspect.batch_status(store, batch)

The route, the parsing of requests, the rendering of answers and the OpenAPI document are made from it: the id is the
function's name, the summary its docstring, the tag its module. An argument is recognized by its type:

* `Request`, `Service`, `Store`, `TenantId`: of the request;
* a reference such as `BatchRef`: the placeholder of the path;
* `Annotated[int, whole(...)]` and the like (`api.request.parameters`): a query parameter, required without a default;
* any other struct: the body.
"""

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, NamedTuple, get_args, get_origin, get_type_hints

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from api.request import references
from api.request.bodies import JSON, MSGPACK, read_body, render
from api.request.parameters import Parameter, Query, check_query
from api.service import Service, service_of, store_of, tenant_of
from prorl_mq.schema.ids import TenantId
from prorl_mq.store.store import Store

OF_REQUEST: Final[Mapping[Any, Callable[[Request], Any]]] = {
    Request: lambda request: request,
    Service: service_of,
    Store: store_of,
    TenantId: tenant_of,
}
OF_RUN: Final = re.compile(r"/v1/(runs|batches|groups|jobs)/{(\w+)}(?!/(cell|departure|arrival))")
PLACEHOLDER: Final = re.compile(r"{(\w+)}")


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One successful answer. `body` None: text of the media type."""

    description: str
    body: Any = None
    media_types: tuple[str, ...] = (JSON,)


class Argument(NamedTuple):
    """One argument of an endpoint: how it is read from a request, and the parameters that it declares."""

    read: Callable[[Request], Any]
    parameters: tuple[Parameter, ...] = ()


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One method of one path. `public` ones need no token; `body` is the type of the argument `body_argument`."""

    method: str
    path: str
    id: str
    tag: str
    summary: str
    endpoint: Callable[..., Awaitable[Any]]
    arguments: Mapping[str, Argument]
    body: Any
    body_argument: str
    answers: Mapping[int, Answer]
    errors: tuple[int, ...]
    public: bool

    @property
    def parameters(self) -> list[Parameter]:
        return [parameter for each in self.arguments.values() for parameter in each.parameters]

    @property
    def names_run(self) -> str:
        """The placeholder of an id that begins with a run; empty where the path has none, or tells of a move itself."""
        found = OF_RUN.match(self.path)
        return found[2] if found else ""

    async def answer(self, request: Request) -> Response:
        """Reads the arguments, calls the endpoint and renders what it returns."""
        check_query(request, [each.name for each in self.parameters if each.where == "query"])
        given = {name: argument.read(request) for name, argument in self.arguments.items()}
        if self.body is not None:
            given[self.body_argument] = await read_body(request, self.body)
        made = await self.endpoint(**given)
        if isinstance(made, Response):
            return made
        status, value = made if isinstance(made, tuple) else (next(iter(self.answers)), made)
        return render(request, value, status)


def operation(
    method: str,
    path: str,
    *,
    answers: Mapping[int, str] | None = None,
    returns: Any = None,
    media_types: tuple[str, ...] = (JSON, MSGPACK),
    errors: tuple[int, ...] = (),
    public: bool = False,
) -> Callable[[Callable[..., Awaitable[Any]]], Operation]:
    """Declares an endpoint, which becomes an `Operation`.

    An endpoint returns a struct, a pair of status and struct if several `answers` are possible, or a `Response`, whose
    content `returns` and `media_types` then describe. `errors` are the statuses that no other rule adds: see `_errors`.
    """

    def declare(endpoint: Callable[..., Awaitable[Any]]) -> Operation:
        types = get_type_hints(endpoint, include_extras=True)
        content = returns or _content(types["return"])
        arguments = {name: _argument(endpoint, path, name, kind) for name, kind in types.items() if name != "return"}
        bodies = [name for name, argument in arguments.items() if argument is None]
        if len(bodies) > 1:
            raise TypeError(f"{endpoint.__name__}: one argument may be the body, not {' and '.join(bodies)}")
        body = bodies[0] if bodies else ""
        described = answers or {200: _first_line(content) if content else HTTPStatus.OK.phrase}
        return Operation(
            method=method,
            path=path,
            id=endpoint.__name__,
            tag=endpoint.__module__.rpartition(".")[2],
            summary=_first_line(endpoint).removesuffix("."),
            endpoint=endpoint,
            arguments={name: argument for name, argument in arguments.items() if argument is not None},
            body=types[body] if body else None,
            body_argument=body,
            answers={
                status: Answer(description=text, body=content, media_types=media_types)
                for status, text in described.items()
            },
            errors=_errors(errors, in_path="{" in path, body=bool(body), public=public),
            public=public,
        )

    return declare


def _argument(endpoint: Callable[..., Any], path: str, name: str, kind: Any) -> Argument | None:
    """None: it is the body."""
    if query := next((each for each in get_args(kind)[1:] if isinstance(each, Query)), None):
        default = inspect.signature(endpoint).parameters[name].default
        default = ... if default is inspect.Parameter.empty else default
        return Argument(lambda request: query.read(request, name, default), query.declared(name, default))
    if kind in OF_REQUEST:
        return Argument(OF_REQUEST[kind])
    if form := references.FORMS.get(kind):
        [place] = PLACEHOLDER.findall(path)
        return Argument(lambda request: references.reference(request, form, place), (references.declared(form, place),))
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        raise TypeError(f"{endpoint.__name__}: the type of {name!r} does not say where in a request it comes from")
    return None


def _errors(own: tuple[int, ...], *, in_path: bool, body: bool, public: bool) -> tuple[int, ...]:
    """Each operation may meet wrong parameters, one with an id an unknown thing, one with a body a wrong body."""
    found = {422, *own} | ({404} if in_path else set()) | ({400, 413, 415} if body else set())
    return tuple(sorted(found if public else found | {429, 503}))


def _content(returned: Any) -> Any:
    """The struct of `Struct` or of `tuple[int, Struct]`; None for a `Response`."""
    kind = get_args(returned)[1] if get_origin(returned) is tuple else returned
    return None if kind is Response else kind


def _first_line(documented: Any) -> str:
    return inspect.cleandoc(documented.__doc__).splitlines()[0]
