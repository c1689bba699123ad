"""Traces: one for each job, from its submission to its end, across all processes."""

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from tokenizers import Tokenizer

from prorl_mq.client import AsyncClient
from prorl_mq.process.http_server import HttpRequest, HttpResponse, HttpServer
from prorl_mq.process.tracing import root_of
from prorl_mq.testing.fake_backend import FakeBackend
from prorl_mq.testing.sampling import scripted
from tests.cli.conftest import Up

pytestmark = pytest.mark.anyio

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Receiver:
    """An OTLP/HTTP collector that keeps what it is sent."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Span]] = []
        self.server = HttpServer(self._handle)

    async def _handle(self, request: HttpRequest) -> HttpResponse:
        assert request.path == "/v1/traces"
        for resource in ExportTraceServiceRequest.FromString(request.body).resource_spans:
            [service] = [each.value.string_value for each in resource.resource.attributes if each.key == "service.name"]
            self.spans += [(service, span) for scope in resource.scope_spans for span in scope.spans]
        return HttpResponse(status=200, body=b"")


class Listening(FakeBackend):
    """A backend that notes the trace context of each generating request."""

    parents: list[str]

    async def _generate(self, request: HttpRequest) -> HttpResponse:
        self.parents.append(request.headers["traceparent"])
        return await super()._generate(request)


def texts(tokenizer: Path) -> list[list[int]]:
    """A call of a tool, then one that gives the answer."""
    model = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    calls = (("execute_bash", '{"command": "echo 6"}'), ("finish", '{"message": "7"}'))
    said = [f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>' for name, arguments in calls]
    return [list(model.encode(text, add_special_tokens=False).ids) for text in said]


def attributes(span: Span) -> dict[str, str | int]:
    return {each.key: each.value.string_value or each.value.int_value for each in span.attributes}


async def rolled_out(up: Callable[..., Up], backend: str) -> str:
    """One job, from a caller that is traced itself; the service is drained after it."""
    service = await asyncio.to_thread(up, "--sandbox", "local", "--backend", backend)
    url = await asyncio.to_thread(lambda: service.url)
    task = {"task_id": "sum", "data_source": "reasoning_gym", "payload": {"name": "chain_sum", "seed": 1, "size": 1}}
    batch = {"run_id": "r", "batch_id": "b", "groups": [{"task": task}]}
    async with httpx.AsyncClient(base_url=url, headers=service.headers, trust_env=False, timeout=60) as client:
        answer = await client.post("/v1/batches", json=batch, headers={"traceparent": CALLER})
        assert answer.status_code == 202
    async with AsyncClient(url) as trainer:
        async for closed in trainer.groups("r", batch_id="b"):
            [sample] = closed.record.samples
            assert sample.outcome == "completed", sample
    assert await asyncio.to_thread(service.end) == 0
    return sample.job_id


async def test_a_job_has_one_trace_across_all_processes(
    up: Callable[..., Up], tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = Receiver()
    await receiver.server.start(0)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{receiver.server.port}")
    try:
        async with Listening(reply=scripted(texts(tokenizer_dir))) as backend:
            backend.parents = []
            job = await rolled_out(up, backend.address)
    finally:
        await receiver.server.stop()
    [submit] = [span for _, span in receiver.spans if span.name == "submit r:b"]
    assert (submit.trace_id.hex(), submit.parent_span_id.hex()) == tuple(CALLER.split("-")[1:3])
    begin = f"00-{submit.trace_id.hex()}-{submit.span_id.hex()}-01"
    ids = root_of(begin, job)
    trace = [(service, span) for service, span in receiver.spans if int.from_bytes(span.trace_id) == ids.trace_id]
    told = Counter((service, span.name) for service, span in trace)
    assert told == {
        ("prorl-api", f"rollout {job}"): 1,
        ("prorl-api", "backlog"): 1,
        ("prorl-api", "queue init"): 1,
        ("prorl-api", "queue run"): 1,
        ("prorl-api", "queue eval"): 1,
        ("prorl-init", "init"): 1,
        ("prorl-run", "run"): 1,
        ("prorl-run", "text_completion policy"): 2,
        ("prorl-run", "execute_tool execute_bash"): 1,
        ("prorl-run", "execute_tool finish"): 1,
        ("prorl-eval", "eval"): 1,
    }
    spans = [span for _, span in trace]
    by_id = {span.span_id: span for span in spans}
    [root] = [span for span in spans if span.name.startswith("rollout")]
    [run] = [span for span in spans if span.name == "run"]
    assert int.from_bytes(root.span_id) == ids.span_id
    assert [link.span_id for link in root.links] == [submit.span_id]
    for span in spans:
        inside = span.name.startswith(("text_completion", "execute_tool"))
        assert span is root or by_id[span.parent_span_id] is (run if inside else root)
        assert root.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
    calls = [span for span in spans if span.name.startswith("text_completion")]
    told = [f"00-{span.trace_id.hex()}-{span.span_id.hex()}-01" for span in (run, *calls)]
    assert backend.parents == told  # the first one is the probe of a backend that was new
    about = attributes(calls[0])
    assert about["gen_ai.operation.name"] == "text_completion"
    assert about["gen_ai.usage.output_tokens"] == len(texts(tokenizer_dir)[0])
    assert about["server.port"] == backend.server.port
