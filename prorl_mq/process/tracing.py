"""OpenTelemetry traces: one for each job, across every process that has worked on it.

A batch's `traceparent` lies in the specs of its groups; each job's trace id and the id of its root span follow from it
and from the job's id, so nothing else has to travel. Workers tell what they did; whoever publishes a group tells the
root and the waits, from the time line: so a trace has both whichever worker has died. Without an endpoint nothing is
made.
"""

import contextlib
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from prorl_mq.errors import ConfigurationError
from prorl_mq.schema.codec import sendable
from prorl_mq.schema.lifecycle import State
from prorl_mq.schema.timeline import SUBMITTED, changes

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span, Tracer

    from prorl_mq.schema.messages import Event, SampleRecord

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
TRACEPARENT: Final = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
WAITS: Final = {State.QUEUED: "queue", State.DELAYED: "back-off"}
MS: Final = 1_000_000  # in nanoseconds
Attributes = Mapping[str, Any]


class Root(NamedTuple):
    """The root span of a job's trace."""

    trace_id: int
    span_id: int


class _Active(NamedTuple):
    tracer: "Tracer"
    span: "Span"


_ACTIVE: ContextVar[_Active | None] = ContextVar("active span", default=None)
_NEXT: ContextVar[Root | None] = ContextVar("ids of the next root span", default=None)


def root_of(traceparent: str, job_id: str) -> Root:
    """The same in every process."""
    digest = hashlib.blake2b(f"{traceparent} {job_id}".encode(), digest_size=24).digest()
    return Root(int.from_bytes(digest[:16]), int.from_bytes(digest[16:]))


def header() -> str | None:
    """The `traceparent` of the current span; None outside of a traced job."""
    active = _ACTIVE.get()
    return None if active is None else _traceparent(active.span)


@contextlib.contextmanager
def span(name: str, *, client: bool = False, about: Attributes | None = None) -> Iterator["Span | None"]:
    """A child of the current span. Costs one look outside of a traced job."""
    active = _ACTIVE.get()
    if active is None:
        yield None
        return
    from opentelemetry import trace

    kind = trace.SpanKind.CLIENT if client else trace.SpanKind.INTERNAL
    made = active.tracer.start_span(name, trace.set_span_in_context(active.span), kind, about)
    with _entered(active.tracer, made):
        yield made


@contextlib.contextmanager
def _entered(tracer: "Tracer", made: "Span") -> Iterator[None]:
    before = _ACTIVE.set(_Active(tracer, made))
    try:
        yield
    except BaseException as error:
        failed(error)
        raise
    finally:
        _ACTIVE.reset(before)
        made.end()


def failed(error: BaseException) -> None:
    """Marks the current span as failed."""
    active = _ACTIVE.get()
    if active is None:
        return
    from opentelemetry.trace import Status, StatusCode

    active.span.set_attribute("error.type", type(error).__name__)
    active.span.set_status(Status(StatusCode.ERROR, sendable(f"{type(error).__name__}: {error}")))


def submission(tracing: "Tracing | None", batch: str, caller: str | None = None) -> AbstractContextManager[str | None]:
    """The `traceparent` of a batch's traces, while it is taken in; None where they are off or not sampled."""
    return nullcontext() if tracing is None else tracing.submission(batch, caller)


class Tracing:
    """The spans of one process, on their way to a collector."""

    def __init__(self, exporter: "SpanExporter", service: str) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON

        class Ids(RandomIdGenerator):
            """Random ones, except for a root span, whose ids every process knows."""

            def generate_trace_id(self) -> int:
                told = _NEXT.get()
                return told.trace_id if told else super().generate_trace_id()

            def generate_span_id(self) -> int:
                told = _NEXT.get()
                return told.span_id if told else super().generate_span_id()

        resource = Resource.create({"service.name": service})
        spans = BatchSpanProcessor(exporter)
        # Whether a batch is sampled is asked once, when it comes: what follows from it is always told.
        batches = TracerProvider(resource=resource, shutdown_on_exit=False)
        jobs = TracerProvider(ALWAYS_ON, resource, id_generator=Ids(), shutdown_on_exit=False)
        for provider in (batches, jobs):
            provider.add_span_processor(spans)
        self._provider = jobs
        self._batches, self._tracer = batches.get_tracer("prorl_mq"), jobs.get_tracer("prorl_mq")

    def close(self) -> None:
        """Sends what is left, through the one way out that all spans share. Blocks for as long as that may take."""
        self._provider.shutdown()

    @contextlib.contextmanager
    def submission(self, batch: str, caller: str | None) -> Iterator[str | None]:
        """A batch is taken in. `caller`: the traceparent that came with it."""
        from opentelemetry import trace

        context = _context(caller) if caller and TRACEPARENT.fullmatch(caller) else None
        made = self._batches.start_span(f"submit {batch}", context, trace.SpanKind.SERVER, {"prorl.batch_id": batch})
        with _entered(self._batches, made):
            yield _traceparent(made) if made.get_span_context().trace_flags.sampled else None

    @contextlib.contextmanager
    def stage(self, name: str, traceparent: str, job_id: str, attributes: Attributes) -> Iterator[None]:
        """One attempt of a stage, as its worker sees it."""
        root = root_of(traceparent, job_id)
        context = _context(f"00-{root.trace_id:032x}-{root.span_id:016x}-01")
        made = self._tracer.start_span(name, context, attributes={"prorl.job_id": job_id, **attributes})
        with _entered(self._tracer, made):
            yield

    def rollout(self, traceparent: str, sample: "SampleRecord", events: Sequence["Event"]) -> None:
        """The root of an ended job's trace, and its waits: in the backlog, in queues, in back-offs."""
        if not events:
            return
        from opentelemetry import trace

        first, told = events[0], events[0].detail
        begin_ms = int(told.removeprefix(SUBMITTED)) if told.startswith(SUBMITTED) else first.ms
        about: dict[str, str | int | float] = {
            "prorl.job_id": sample.job_id,
            "prorl.outcome": sample.outcome.value,
            "prorl.attempt": sample.attempt,
        }
        if sample.reward is not None:
            about["prorl.reward"] = sample.reward
        link = trace.Link(trace.get_current_span(_context(traceparent)).get_span_context())
        forced = _NEXT.set(root_of(traceparent, sample.job_id))
        try:
            root = self._tracer.start_span(
                f"rollout {sample.job_id}", None, attributes=about, links=[link], start_time=begin_ms * MS
            )
        finally:
            _NEXT.reset(forced)
        if sample.error is not None:
            root.set_attribute("error.type", sample.error.type)
            root.set_status(trace.Status(trace.StatusCode.ERROR, sample.error.message))
        below = trace.set_span_in_context(root)
        self._wait("backlog", below, begin_ms, first.ms)
        for change in changes(events, events[-1].ms):
            if change.state in WAITS and change.seconds is not None:
                until_ms = change.ms + round(change.seconds * 1000)
                self._wait(f"{WAITS[change.state]} {change.stage}", below, change.ms, until_ms)
        root.end(events[-1].ms * MS)

    def _wait(self, name: str, below: Any, begin_ms: int, end_ms: int) -> None:
        self._tracer.start_span(name, below, start_time=begin_ms * MS).end(end_ms * MS)


def from_environment(environ: Mapping[str, str], service: str) -> Tracing | None:
    """Off (None) unless OpenTelemetry's own variables name an endpoint. Raises `ConfigurationError`."""
    named = [name for name in ENDPOINTS if environ.get(name)]
    if not named:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        raise ConfigurationError(f"{named[0]} asks for traces: pip install 'prorl-mq[otel]', or unset it") from None
    return Tracing(OTLPSpanExporter(), service)


def _traceparent(span: "Span") -> str:
    at = span.get_span_context()
    return f"00-{at.trace_id:032x}-{at.span_id:016x}-{int(at.trace_flags):02x}"


def _context(traceparent: str) -> Any:
    """The span of another process, as a parent."""
    from opentelemetry import trace

    _, trace_id, span_id, flags = traceparent.split("-")
    sampled = trace.TraceFlags(int(flags, 16))
    at = trace.SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=sampled)
    return trace.set_span_in_context(trace.NonRecordingSpan(at))
