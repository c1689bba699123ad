"""Traces that are off leave nothing behind; those that are on begin at the same place everywhere."""

from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from prorl_mq.process import tracing
from prorl_mq.schema.codec import encode
from prorl_mq.schema.items import GroupSpec
from prorl_mq.schema.messages import ErrorInfo, Limits, Outcome, SampleRecord, Sampling, Stage, events

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


class Told:
    """A process that keeps its spans to itself."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.tracing = tracing.Tracing(self._exporter, "test")

    def spans(self) -> Sequence[ReadableSpan]:
        self.tracing.close()
        return self._exporter.get_finished_spans()


SAMPLE = SampleRecord(
    job_id="r:g:0", index=0, outcome=Outcome.INFRA_ERROR,
    error=ErrorInfo(type="SandboxUnavailable", message="no room", stage=Stage.INIT),
)  # fmt: skip
LINE = "2000\tadmit\tinit\t\t\tsubmitted_ms=500\n2100\tclaim\tinit\t1\ti1\t\n2600\tfinish\tinit\t1\ti1\tinfra_error\n"


@pytest.mark.parametrize(("flags", "sampled"), [("01", True), ("00", False)])
def test_whoever_submits_decides_whether_a_batch_is_sampled_and_all_of_it_is(
    monkeypatch: pytest.MonkeyPatch, flags: str, sampled: bool
) -> None:
    """A root has no parent: a sampler that is asked again would drop it, and what is below it not."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    told = Told()
    with tracing.submission(told.tracing, "r:b", PARENT[:-2] + flags) as trace:
        assert (trace is not None) is sampled
    if trace is not None:
        told.tracing.rollout(trace, SAMPLE, events("r:g:0", LINE))
    names = {span.name for span in told.spans()}
    assert names == ({"submit r:b", "rollout r:g:0", "backlog", "queue init"} if sampled else set())


def test_without_tracing_a_submission_has_no_trace() -> None:
    with tracing.submission(None, "r:b", PARENT) as trace:
        assert trace is None


def test_a_root_lasts_from_the_submission_to_the_end_and_says_what_went_wrong() -> None:
    told = Told()
    told.tracing.rollout(PARENT, SAMPLE, events("r:g:0", LINE))
    spans = {span.name: span for span in told.spans()}
    assert {name: (span.start_time, span.end_time) for name, span in spans.items()} == {
        "rollout r:g:0": (500 * tracing.MS, 2600 * tracing.MS),
        "backlog": (500 * tracing.MS, 2000 * tracing.MS),
        "queue init": (2000 * tracing.MS, 2100 * tracing.MS),
    }
    root = spans["rollout r:g:0"]
    assert (root.status.status_code, root.status.description) == (StatusCode.ERROR, "no room")
    assert dict(root.attributes or {})["error.type"] == "SandboxUnavailable"


def test_what_fails_inside_is_told_where_it_failed_and_the_next_part_has_the_right_parent() -> None:
    told = Told()
    with told.tracing.stage("run", PARENT, "r:g:0", {}):
        with pytest.raises(ZeroDivisionError), tracing.span("a call"):
            _ = 1 // 0
        with tracing.span("another call"):
            pass
        tracing.failed(ValueError("caught"))
    spans = {span.name: span for span in told.spans()}
    types = {name: dict(span.attributes or {}).get("error.type") for name, span in spans.items()}
    assert types == {"a call": "ZeroDivisionError", "another call": None, "run": "ValueError"}
    run = spans["run"].context
    parents = [spans[name].parent for name in ("a call", "another call")]
    assert run is not None
    assert [parent and parent.span_id for parent in parents] == [run.span_id, run.span_id]
    assert tracing.header() is None
