"""Requests made up from the OpenAPI document: no input ends as a server's fault, and every answer is as described."""

import contextlib
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed
from hypothesis import settings as examples
from msgspec.structs import replace
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from api.openapi import document
from api.operations import Operation
from api.routes import OPERATIONS
from prorl_mq.store.server.connection import RedisSettings
from tests.api.service import batch
from tests.api.threaded import threaded

CHECKS = [
    not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance,
    unsupported_method,
]  # fmt: skip
SCHEMA = schemathesis.openapi.from_dict(document(OPERATIONS, version="1", tokens=False))


@pytest.fixture(scope="module")
def urls(empty_redis: RedisSettings) -> Iterator[list[str]]:
    """Two served applications with one batch in each."""
    with contextlib.ExitStack() as stack:
        found = list[str]()
        for name in (empty_redis.namespace, f"{empty_redis.namespace}-moved"):
            address = stack.enter_context(threaded(replace(empty_redis, namespace=name), beside=bool(found)))
            assert httpx.post(f"{address}/v1/batches", json=batch()).status_code == 202
            found.append(address)
        yield found


def kinds() -> Iterator[Any]:
    """Each operation with right requests, and with wrong ones where anything about it can be wrong."""
    for operation in OPERATIONS:
        yield pytest.param(operation, GenerationMode.POSITIVE, id=f"{operation.id}-right")
        if operation.parameters or operation.body:
            yield pytest.param(operation, GenerationMode.NEGATIVE, id=f"{operation.id}-wrong")


@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisDeprecationWarning")  # of schemathesis itself
@pytest.mark.parametrize(("operation", "mode"), list(kinds()))
def test_no_made_up_request_is_answered_by_a_fault_or_by_something_undescribed(
    urls: list[str], operation: Operation, mode: GenerationMode
) -> None:
    """Steps of a move have an application of their own: what else concerns a run on its way is refused (503)."""
    url = urls[operation.tag == "moving"]
    strategy = SCHEMA[operation.path][operation.method].as_strategy(generation_mode=mode)

    @seed(20_17)
    @examples(
        max_examples=40, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(case=strategy)
    def made_up(case: Any) -> None:
        if isinstance(case.query, dict):
            case.query.pop("wait", None)
            if operation.id == "watch" and str(case.query.get("seconds", 0)).isdecimal():
                case.query["seconds"] = 0
        answer = case.call(base_url=url, timeout=20)
        case.validate_response(answer, checks=CHECKS)

    made_up()
