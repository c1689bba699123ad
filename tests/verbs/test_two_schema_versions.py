"""Two releases at once: what a newer one wrote is read, and so is what an older one left out."""

from typing import Any

import msgspec
import pytest

from prorl_mq.schema.codec import decode, decode_any, encode
from prorl_mq.schema.ids import JobRef
from prorl_mq.schema.intake import (
    Acknowledge,
    AddBackend,
    AnnouncePolicy,
    Cancel,
    IntakeAnswer,
    Submit,
    decode_answer,
    decode_message,
)
from prorl_mq.schema.items import Finish, GroupSpec
from prorl_mq.schema.messages import (
    BatchRequest,
    ErrorInfo,
    GroupRecord,
    GroupRequest,
    Limits,
    Outcome,
    SampleRecord,
    Sampling,
    Stage,
    Task,
    Verdict,
)
from prorl_mq.schema.strict import Misfit
from prorl_mq.schema.task_schema import Schema
from prorl_mq.schema.trajectory import Segment, Span, Trajectory, Turn
from sandbox.protocol import SandboxHandle
from tests.support.queue import Queue, record, spec
from tests.verbs.places import GROUP, JOB
from workers.stages.work import Carried

TASK = Task(task_id="t1", data_source="sums", payload={"question": "1 + 1"}, sealed={"answer": 2})
BATCH = BatchRequest(run_id="r", batch_id="b", groups=[GroupRequest(task=TASK, n=2)])
SAMPLE = SampleRecord(
    job_id="r:g:0", index=0, outcome=Outcome.INFRA_ERROR, error=ErrorInfo(type="E", message="m", stage="run")
)
TRAJECTORY = Trajectory(
    segments=[
        Segment(
            prompt_ids=[1], response_ids=[2], loss_mask=[1], logprobs=[-0.5], spans=[Span(start=0, end=1, backend="b")]
        )
    ],
    turns=[
        Turn(
            segment=0, prompt_tokens=1, completion_tokens=1, cached_tokens=None, finish_reason="stop", llm_seconds=0.1,
            text="2",
        )
    ],
    stop_reason="finish",
)  # fmt: skip
HANDLE = SandboxHandle(kind="local", node="n1", sandbox_id="s", directory="d", pid=1, pid_started="2")

STRUCTS: list[msgspec.Struct] = [
    spec("b", limits=Limits(total_ms=5), sampling=Sampling(seed=1)),
    SAMPLE,
    GroupRecord(
        run_id="r", batch_id="b", group_id="g", task_id="t", data_source="sums", verdict=Verdict.FAILED,
        samples=[SAMPLE], n=1,
    ),
    Carried(handler={"a": 1}, sandbox=HANDLE, turns=3),
    TRAJECTORY,
    BATCH,
    Schema(required=["question"], sealed=["answer"]),
]  # fmt: skip
MESSAGES: list[msgspec.Struct] = [
    Submit(reply="1", batch=BATCH),
    Acknowledge(reply="2", cursors=["1-1"]),
    Cancel(reply="3", kind="run", id="r"),
    AnnouncePolicy(reply="4", pool="p", version=3),
    AddBackend(reply="5", pool="p", address="http://b1"),
]


def from_the_future(value: Any) -> Any:
    """The same with a field that nobody here knows, at every level that is a struct."""
    return in_full(value, from_the_future={"nested": [1, None]})


def in_full(value: Any, **new: Any) -> Any:
    """As plain data, with the defaults, and with `new` fields at every level that is a struct."""
    if isinstance(value, msgspec.Struct):
        plain = {name: in_full(getattr(value, name), **new) for name in value.__struct_fields__}
        config = value.__struct_config__
        tag = {config.tag_field: config.tag} if config.tag_field else {}
        return {**tag, **new, **plain}
    if isinstance(value, list | tuple):
        return [in_full(each, **new) for each in value]
    return value


def from_the_past(value: Any) -> Any:
    """The same with only what has no default, at every level."""
    if isinstance(value, msgspec.Struct):
        config = value.__struct_config__
        tag = {config.tag_field: config.tag} if config.tag_field else {}
        needed = {field.name for field in msgspec.structs.fields(value) if field.required}
        return {**tag, **{name: from_the_past(getattr(value, name)) for name in needed}}
    if isinstance(value, list | tuple):
        return [from_the_past(each) for each in value]
    return value


def kind(value: object) -> str:
    return type(value).__name__


@pytest.mark.parametrize("value", STRUCTS, ids=kind)
def test_unknown_fields_of_a_newer_release_are_skipped(value: msgspec.Struct) -> None:
    assert decode(encode(from_the_future(value)), type(value)) == decode(encode(in_full(value)), type(value))


@pytest.mark.parametrize("value", STRUCTS, ids=kind)
def test_fields_that_an_older_release_did_not_know_get_their_defaults(value: msgspec.Struct) -> None:
    read = decode(encode(from_the_past(value)), type(value))
    for field in msgspec.structs.fields(value):
        if not field.required:
            default = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
            assert getattr(read, field.name) == default


@pytest.mark.parametrize("value", MESSAGES, ids=kind)
def test_the_intake_reads_messages_of_older_clients_and_names_the_newer_field_that_it_refuses(
    value: msgspec.Struct,
) -> None:
    """As the API does: a field that is skipped could be a misspelt one."""
    assert type(decode_message(encode(from_the_past(value)))) is type(value)
    assert decode_message(encode(in_full(value))) == value
    with pytest.raises(Misfit, match="unknown field 'from_the_future'"):
        decode_message(encode(from_the_future(value)))


def test_a_client_reads_the_answers_of_newer_and_older_services() -> None:
    answer = IntakeAnswer(reply="1", ok=False, error="no room", status=429, retry_after_ms=7)
    assert decode_answer(encode(from_the_future(answer))) == answer
    assert decode_answer(encode(from_the_past(answer))) == IntakeAnswer(reply="1", ok=False)


@pytest.mark.anyio
async def test_a_newer_workers_record_reaches_the_trainer_with_all_that_it_holds(queue: Queue) -> None:
    """A settler of the older release publishes what the newer worker wrote, its new fields too."""
    held = await queue.hold(Stage.INIT)
    sample = decode(record(JOB), SampleRecord)
    await queue.store.finish([Finish(held, Outcome.COMPLETED, encode(from_the_future(sample)))])
    spec_key = queue.keys.open(GROUP)
    told = decode(await queue.command("GET", spec_key), GroupSpec)
    await queue.command("SET", spec_key, encode(from_the_future(told)))
    await queue.settle()
    [result] = await queue.results()
    assert decode(result.record, GroupRecord).samples == [sample]
    assert decode_any(result.record)["samples"][0]["from_the_future"] == {"nested": [1, None]}


@pytest.mark.anyio
async def test_a_group_of_an_older_release_is_carried_on(queue: Queue) -> None:
    held = await queue.hold(Stage.INIT)
    told = decode(await queue.command("GET", queue.keys.open(GROUP)), GroupSpec)
    await queue.command("SET", queue.keys.open(GROUP), encode(from_the_past(told)))
    await queue.store.finish(
        [Finish(held, Outcome.COMPLETED, encode(from_the_past(decode(record(JOB), SampleRecord))))]
    )
    await queue.settle()
    [result] = await queue.results()
    assert [sample.job_id for sample in decode(result.record, GroupRecord).samples] == ["r:g:0"]
    assert JobRef("acme:r:g:0") == JOB
