"""Traces that are off leave nothing behind; those that are on begin at the same place everywhere."""

import pytest

from prorl_mq import tracing
from prorl_mq.codec import encode
from prorl_mq.messages import Limits, Sampling
from prorl_mq.moves import GroupSpec

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_without_an_endpoint_there_are_no_traces() -> None:
    assert tracing.from_environment({}, "prorl-api") is None
    assert tracing.from_environment({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, "prorl-api") is None
    with tracing.span("a call") as span:
        assert span is None
    assert tracing.header() is None


def test_a_spec_without_a_trace_is_not_a_byte_longer() -> None:
    about = {"batch": "b", "task_id": "t", "data_source": "s", "payload": {}, "n": 1, "max_refills": 1, "pool": "p"}
    spec = GroupSpec(sampling=Sampling(), limits=Limits(), **about)  # type: ignore[arg-type]
    assert b"trace" not in encode(spec)


def test_each_job_has_its_own_trace_which_every_process_knows() -> None:
    roots = [tracing.root_of(PARENT, f"r:g:{index}") for index in range(100)]
    assert len({root.trace_id for root in roots}) == len({root.span_id for root in roots}) == 100
    assert roots[7] == tracing.root_of(PARENT, "r:g:7")
    assert roots[7] != tracing.root_of(PARENT.replace("1-01", "2-01"), "r:g:7")


@pytest.mark.parametrize("parent", ["", "00-abc-def-01", f"{PARENT}\r\nevil: 1", PARENT.replace("0af765", "000000")])
def test_what_is_no_traceparent_is_none(parent: str) -> None:
    """The last one is one: only all zeros are not."""
    assert bool(tracing.TRACEPARENT.fullmatch(parent)) is parent.startswith("00-000000")
