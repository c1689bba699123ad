"""RUN and EVAL where a file system does not do its part: nothing is lost that Redis takes, and it is said."""

import os
from collections.abc import Callable
from typing import Any, cast

import pytest

from prorl_mq.schema.codec import decode, decode_trajectory, encode
from prorl_mq.schema.faults import Cause
from prorl_mq.schema.items import Advance, Claim, Fail, Finish, Held
from prorl_mq.schema.messages import Limits, Outcome, SampleRecord, Stage
from prorl_mq.store.payloads import reading
from prorl_mq.store.payloads.files import PayloadFiles
from prorl_mq.store.payloads.limits import REDIS_BYTES
from prorl_mq.store.payloads.name import named_file
from tests.chaos.handler import said, text_of
from tests.payloads.conftest import TENANT, age, under
from tests.payloads.test_collect import collected
from tests.support.queue import Queue, spec
from workers.handler import Handler, Ran, Score
from workers.metrics import REGISTRY
from workers.stages.eval import EvalStage
from workers.stages.registry import Registry
from workers.stages.run import RunStage
from workers.stages.work import Carried, Work

pytestmark = pytest.mark.anyio
ANY: Any = None


class Says:
    """An agent that says a lot."""

    data_sources = (spec().data_source,)

    def __init__(self, size: int) -> None:
        self.size = size

    async def run(self, _context: Any) -> Ran:
        return Ran(trajectory=said(self.size, 0))

    async def eval(self, context: Any) -> Score:
        return Score(reward=float(context.trajectory.turns[0].text == text_of(self.size, 0)))


class Exports(Says):
    """An agent that leaves a lot to be scored."""

    async def run(self, _context: Any) -> Ran:
        return Ran(trajectory=None, export={"work": b"w" * self.size})

    async def eval(self, context: Any) -> Score:
        return Score(reward=float(context.export == {"work": b"w" * self.size}))


async def acted(
    queue: Queue, held: Held, size: int, *, name: str = "", attempts: int = 0, carry: bytes = b"", agent: Any = Says
) -> Any:
    """The decision of a stage."""
    registry = Registry([cast("Handler", agent(size))])
    limits = Limits(max_attempts=3)
    claim = Claim("claimed", held.token, attempts, carry=carry or encode(Carried()), trajectory=name)
    work = Work(held=held, claim=claim, spec=spec(limits=limits))
    if held.stage is Stage.EVAL:
        stage: RunStage | EvalStage = EvalStage(registry, None, queue.store)
    else:
        stage = RunStage(registry, None, queue.store, ANY, "n0")
    return (await stage.perform(work)).item


def count(name: str, **labels: str) -> Callable[[], float]:
    before = REGISTRY.get_sample_value(name, labels) or 0.0
    return lambda: (REGISTRY.get_sample_value(name, labels) or 0.0) - before


async def test_run_writes_a_file_and_eval_reads_it(queue: Queue, files: PayloadFiles) -> None:
    in_file = count("prorl_payload_bytes_total", place="file")
    held = await queue.hold(Stage.RUN)
    item = await acted(queue, held, 200_000)
    assert isinstance(item, Advance)
    assert named_file(item.trajectory)
    assert in_file() == decode(item.carry, Carried).trajectory_bytes > 200_000
    await queue.store.advance([item])
    [held] = await queue.take(Stage.EVAL)
    ended = await acted(queue, held, 200_000, name=item.trajectory)
    assert isinstance(ended, Finish)
    assert decode(ended.record, SampleRecord).reward == 1.0
    assert len(under(files.directory)) == 1


async def test_a_large_export_is_a_file_that_its_job_names_until_it_is_scored(
    queue: Queue, files: PayloadFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = await acted(queue, await queue.hold(Stage.RUN), 200_000, agent=Exports)
    assert len(item.carry) < 1000
    assert decode(item.carry, Carried).exported == item.exported
    file = named_file(item.exported)
    assert file is not None
    await queue.store.advance([item])
    [held] = await queue.take(Stage.EVAL)
    age(files, file)
    await collected(queue, files)
    scored = await acted(queue, held, 200_000, carry=item.carry, agent=Exports)
    assert decode(scored.record, SampleRecord).reward == 1.0
    monkeypatch.setattr(reading.get, "__kwdefaults__", {"within_s": 0.1})
    await queue.command("HDEL", queue.keys.job(held.ref), "exported")  # the control: what no job names is collected
    await collected(queue, files)
    failed = await acted(queue, held, 200_000, carry=item.carry, agent=Exports)
    assert isinstance(failed, Fail)
    assert "cannot be read: No such file or directory" in failed.detail


@pytest.mark.parametrize(("size", "there"), [(1000, True), (200_000, False)])
async def test_a_small_export_and_one_that_no_file_takes_stay_with_the_job(
    queue: Queue, files: PayloadFiles, size: int, there: bool
) -> None:
    if not there:
        files.directory.rmdir()
    item = await acted(queue, await queue.hold(Stage.RUN), size, agent=Exports)
    assert item.exported == ""
    await queue.store.advance([item])
    [held] = await queue.take(Stage.EVAL)
    scored = await acted(queue, held, size, carry=item.carry, agent=Exports)
    assert decode(scored.record, SampleRecord).reward == 1.0


async def test_on_a_full_or_read_only_disk_run_keeps_it_in_redis_and_counts_it(
    queue: Queue, files: PayloadFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise OSError(30, "Read-only file system")

    faults, in_redis = count("prorl_payload_faults_total"), count("prorl_payload_bytes_total", place="redis")
    monkeypatch.setattr(os, "fsync", fails)
    item = await acted(queue, await queue.hold(Stage.RUN), 200_000)
    assert isinstance(item, Advance)
    data = await reading.get(queue.store, TENANT, item.trajectory)
    assert data is not None
    assert decode_trajectory(data).turns[0].text == text_of(200_000, 0)
    assert (faults(), in_redis()) == (1, len(data))
    assert under(files.directory) == set()


async def test_what_neither_takes_ends_as_infrastructure_and_says_what_to_do(queue: Queue, files: PayloadFiles) -> None:
    files.directory.rmdir()
    item = await acted(queue, await queue.hold(Stage.RUN), REDIS_BYTES + 1_000_000)
    assert isinstance(item, Finish)
    sample = decode(item.record, SampleRecord)
    assert sample.error is not None
    assert (sample.outcome, sample.reward, sample.error.cause) == (Outcome.INFRA_ERROR, None, Cause.NODE)
    assert f"make the directory {files.directory}" in sample.error.message


async def test_eval_without_its_file_fails_the_attempt_and_gives_no_reward(
    queue: Queue, files: PayloadFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "READ_S", 0.1)
    monkeypatch.setattr(reading.get, "__kwdefaults__", {"within_s": 0.1})
    item = await acted(queue, await queue.hold(Stage.RUN), 200_000)
    await queue.store.advance([item])
    [held] = await queue.take(Stage.EVAL)
    file = named_file(item.trajectory)
    assert file is not None
    path = files.path(TENANT, file)
    path.rename(path.with_name("elsewhere"))
    failed = await acted(queue, held, 200_000, name=item.trajectory)
    assert isinstance(failed, Fail)
    assert failed.stage is Stage.EVAL
    assert f"{path} cannot be read: No such file or directory" in failed.detail
    last = await acted(queue, held, 200_000, name=item.trajectory, attempts=2)
    assert isinstance(last, Finish)
    sample = decode(last.record, SampleRecord)
    assert (sample.outcome, sample.reward) == (Outcome.INFRA_ERROR, None)
    path.with_name("elsewhere").rename(path)
    scored = await acted(queue, held, 200_000, name=item.trajectory)
    assert decode(scored.record, SampleRecord).reward == 1.0
