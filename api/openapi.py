"""The OpenAPI document, made from the operations and the structs that they carry."""

from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

import msgspec

from api.operations import Answer, Operation
from api.problems import MEDIA_TYPE, ProblemDocument
from api.request.bodies import EVENT_STREAM, JSON, MSGPACK
from api.request.parameters import Parameter

TEMPLATE: Final = "#/components/schemas/{name}"
ALWAYS: Final = (405, 500)
WAITS: Final = {429, 503}


def document(operations: Sequence[Operation], *, version: str, tokens: bool) -> dict[str, Any]:
    """`tokens`: whether operations that are not public need one."""
    kinds = _kinds(operations)
    schemas, components = msgspec.json.schema_components(kinds, ref_template=TEMPLATE)
    schema_of = dict(zip(map(id, kinds), schemas, strict=True))
    _close(components, {each.body.__name__ for each in operations if each.body})
    paths: dict[str, dict[str, Any]] = {}
    for each in operations:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each, schema_of, tokens=tokens)
    made: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "prorl_mq", "version": version, "description": "Rollout-as-a-service."},
        "paths": paths,
        "components": {"schemas": components},
    }
    if tokens:
        made["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    return made


def _kinds(operations: Iterable[Operation]) -> list[Any]:
    kinds: list[Any] = [ProblemDocument]
    for each in operations:
        kinds += [kind for kind in (each.body, *(answer.body for answer in each.answers.values())) if kind]
    return list({id(kind): kind for kind in kinds}.values())


def _operation(each: Operation, schema_of: Mapping[int, Any], *, tokens: bool) -> dict[str, Any]:
    guarded = tokens and not each.public
    refused = () if not guarded else (401,) if each.method == "GET" else (401, 403)  # 403: a token that reads only
    errors = sorted({*each.errors, *ALWAYS, *refused})
    answers = {str(status): _answer(answer, schema_of) for status, answer in each.answers.items()}
    made: dict[str, Any] = {
        "operationId": each.id,
        "tags": [each.tag],
        "summary": each.summary,
        "parameters": [_parameter(parameter) for parameter in each.parameters],
        "responses": answers | {str(status): _error(status, schema_of) for status in errors},
    }
    if each.body:
        made["requestBody"] = {"required": True, "content": {JSON: {"schema": schema_of[id(each.body)]}}}
    if guarded:
        made["security"] = [{"token": []}]
    return made


def _parameter(each: Parameter) -> dict[str, Any]:
    made = {"name": each.name, "in": each.where, "schema": dict(each.schema), "description": each.description}
    return made | {"required": True} if each.required else made


def _answer(answer: Answer, schema_of: Mapping[int, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for media_type in answer.media_types:
        if media_type in {JSON, MSGPACK} and answer.body:
            content[media_type] = {"schema": schema_of[id(answer.body)]}
        else:
            content[media_type] = {"schema": {"type": "string"}} if media_type != EVENT_STREAM else {}
    return {"description": answer.description, "content": content}


def _error(status: int, schema_of: Mapping[int, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "description": HTTPStatus(status).phrase,
        "content": {MEDIA_TYPE: {"schema": schema_of[id(ProblemDocument)]}},
    }
    if status in WAITS:
        made["headers"] = {"Retry-After": {"description": "Seconds", "schema": {"type": "integer", "minimum": 1}}}
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        made["headers"] = {"Allow": {"description": "The allowed methods", "schema": {"type": "string"}}}
    return made


def _close(components: dict[str, Any], roots: set[str]) -> None:
    """Unknown fields are refused in what callers send, and in all that is inside."""
    todo, done = list(roots), set[str]()
    while todo:
        name = todo.pop()
        if name in done or name not in components:
            continue
        done.add(name)
        if components[name].get("type") == "object":
            components[name]["additionalProperties"] = False
        todo += _references(components[name])


def _references(schema: Any) -> list[str]:
    if isinstance(schema, list):
        return [name for each in schema for name in _references(each)]
    if not isinstance(schema, dict):
        return []
    own = [schema["$ref"].rpartition("/")[2]] if isinstance(schema.get("$ref"), str) else []
    return own + [name for each in schema.values() for name in _references(each)]
