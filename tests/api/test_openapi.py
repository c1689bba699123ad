"""The interface describes itself completely."""

import re
from typing import Annotated, Any

import httpx
import pytest
from starlette.requests import Request

from api.operations import operation
from api.problems import Problem
from api.request.parameters import filled, whole
from api.routes import OPERATIONS
from api.routes.pools import BackendAnswer, BackendRequest
from api.tokens import Caller
from prorl_mq.schema.ids import JobRef, TenantId
from tests.api import interface

pytestmark = pytest.mark.anyio


def references(part: Any) -> set[str]:
    if isinstance(part, list):
        return {name for each in part for name in references(each)}
    if not isinstance(part, dict):
        return set()
    own = {part["$ref"]} if isinstance(part.get("$ref"), str) else set()
    return own.union(*(references(each) for each in part.values()))


async def test_every_operation_is_described_with_its_parameters_bodies_and_errors(client: httpx.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    found = {(path, method) for path, methods in document["paths"].items() for method in methods}
    assert found == {(each.path, each.method.lower()) for each in OPERATIONS}
    for path, methods in document["paths"].items():
        for described in methods.values():
            in_path = {each["name"] for each in described["parameters"] if each["in"] == "path"}
            assert in_path == set(re.findall(r"{(\w+)}", path))
            errors = [answer for status, answer in described["responses"].items() if status >= "400"]
            assert all("application/problem+json" in answer["content"] for answer in errors)


async def test_every_reference_leads_to_a_schema(client: httpx.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert references(document) <= known
    assert document["components"]["schemas"]["Task"]["additionalProperties"] is False


async def test_the_page_and_all_that_it_loads_come_from_the_service(client: httpx.AsyncClient) -> None:
    answer = await client.get("/docs")
    loaded = re.findall(r'(?:src|href)="([^"]+)"', answer.text)
    assert len(loaded) > 3
    assert not [place for place in loaded if "//" in place]
    assert "default-src 'none'; script-src 'self';" in answer.headers["content-security-policy"]
    assert [(await client.get(f"/{place}")).status_code for place in loaded] == [200] * len(loaded)


def test_the_interface_is_the_one_on_record() -> None:
    """A change that is meant: `python -m tests.api.interface`."""
    assert interface.described() == interface.FILE.read_text()


async def test_an_operation_is_made_from_the_signature_of_a_coroutine() -> None:
    @operation("GET", "/v1/things/{id}", answers={200: "It was there", 201: "It is new"}, errors=(409,))
    async def find_thing(
        job: JobRef,
        address: Annotated[str, filled("one", "Its")],
        size: Annotated[int, whole(1, 9, "How large")] = 3,
    ) -> tuple[int, BackendAnswer]:
        """A thing by its id.

        More about it.
        """
        return 201, BackendAnswer(pool=f"{job} {size}", address=address, state="")

    assert (find_thing.id, find_thing.tag, find_thing.summary) == ("find_thing", "test_openapi", "A thing by its id")
    assert [(each.where, each.name, each.required) for each in find_thing.parameters] == [
        ("path", "id", True), ("query", "address", True), ("query", "size", False),
    ]  # fmt: skip
    assert (find_thing.errors, find_thing.body) == ((404, 409, 422, 429, 503), None)
    assert {status: answer.body for status, answer in find_thing.answers.items()} == dict.fromkeys(
        (200, 201), BackendAnswer
    )
    answer = await find_thing.answer(request("address=a", id="run:group:0"))
    assert (answer.status_code, answer.body) == (201, b'{"pool":"ann:run:group:0 3","address":"a","state":""}')
    with pytest.raises(Problem, match="the parameter 'address' is missing: it must be one"):
        await find_thing.answer(request("size=2", id="run:group:0"))
    with pytest.raises(Problem, match="unknown parameter 'sise': did you mean 'size'"):
        await find_thing.answer(request("sise=2", id="run:group:0"))


def test_an_argument_of_no_known_place_is_refused_at_the_declaration() -> None:
    async def unknown(size: int) -> BackendAnswer:
        """It cannot be declared."""
        raise NotImplementedError

    async def doubled(one: BackendRequest, other: BackendRequest) -> BackendAnswer:
        """It cannot be declared."""
        raise NotImplementedError

    with pytest.raises(TypeError, match="unknown: the type of 'size' does not say where"):
        operation("GET", "/v1/unknown")(unknown)
    with pytest.raises(TypeError, match="doubled: one argument may be the body, not one and other"):
        operation("POST", "/v1/doubled")(doubled)


def request(query: str, **places: str) -> Request:
    scope = {"type": "http", "headers": [], "query_string": query.encode(), "path_params": places}
    return Request({**scope, "state": {"caller": Caller(TenantId("ann"))}})
