"""The interface describes itself completely."""

import re
from typing import Any

import httpx
import pytest

from api.routes import OPERATIONS

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
    described = {(path, method) for path, methods in document["paths"].items() for method in methods}
    assert described == {(each.path, each.method.lower()) for each in OPERATIONS}
    for path, methods in document["paths"].items():
        for operation in methods.values():
            in_path = {each["name"] for each in operation["parameters"] if each["in"] == "path"}
            assert in_path == set(re.findall(r"{(\w+)}", path))
            errors = [answer for status, answer in operation["responses"].items() if status >= "400"]
            assert all("application/problem+json" in answer["content"] for answer in errors)


async def test_every_reference_leads_to_a_schema(client: httpx.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert references(document) <= known
    assert document["components"]["schemas"]["Task"]["additionalProperties"] is False


async def test_the_page_lists_every_path_without_anything_from_outside(client: httpx.AsyncClient) -> None:
    page = (await client.get("/docs")).text
    assert all(f"{each.method} {each.path}" in page for each in OPERATIONS)
    assert not re.search(r"<script|src=|https?://", page)
