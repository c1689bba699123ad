"""The staleness limit where stages enforce it: in INIT and at the end; a job that is too stale expires, unrewarded."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from prorl_mq.schema.codec import decode, encode
from prorl_mq.schema.items import Advance, Fail, Finish, Held
from prorl_mq.schema.messages import Limits, Outcome, SampleRecord, Stage
from prorl_mq.schema.trajectory import Segment, Span, Trajectory
from tests.support.queue import POOL, Queue, spec
from workers.handler import Prepared, Ran, Score
from workers.stages.eval import EvalStage
from workers.stages.init import InitStage
from workers.stages.registry import Registry
from workers.stages.run import RunStage
from workers.stages.work import Move, Work

pytestmark = pytest.mark.anyio
LIMITED: dict[str, Any] = {"max_staleness": 1, "limits": Limits()}


class Sums:
    """A task family whose jobs always succeed."""

    data_sources: Sequence[str] = ("sums",)
    needs_sandbox = False
    schema: Any = None

    def __init__(self, version: tuple[str, str] | None = None) -> None:
        self._version = version

    async def init(self, context: Any) -> Prepared:
        return Prepared()

    async def run(self, context: Any) -> Ran:
        spans = [Span(start=0, end=1, backend="b", version=self._version)]
        segment = Segment(prompt_ids=[1], response_ids=[2], loss_mask=[1], logprobs=[-1.0], spans=spans)
        return Ran(trajectory=Trajectory(segments=[segment], turns=[], stop_reason="answer"))

    async def eval(self, context: Any) -> Score:
        return Score(reward=1.0, parts={"sums": 1.0}, evidence={"asked": ["3 + 4"]})


async def said(queue: Queue, *versions: int) -> None:
    """Each in a millisecond of its own, as what was admitted before or after must be told apart."""
    for version in versions:
        before_ms = await queue.store.now_ms()
        while await queue.store.now_ms() == before_ms:
            pass
        await queue.store.announce(POOL, version, "keep", "")


async def claimed(queue: Queue, stage: Stage) -> Work:
    """The one job, read and claimed in a stage."""
    [entry] = await queue.read(stage)
    [claim] = await queue.claim(stage, [entry])
    held = Held(entry.ref, claim.token, entry.entry, stage, None, POOL)
    return Work(held=held, claim=claim, spec=spec(**LIMITED))


def ending(move: Move) -> SampleRecord | None:
    return decode(move.item.record, SampleRecord) if isinstance(move.item, Finish) else None


@pytest.mark.parametrize(("later", "expires"), [((8,), False), ((8, 9), True)])
async def test_a_job_that_waited_too_long_for_init_expires_there(
    queue: Queue, later: tuple[int, ...], expires: bool
) -> None:
    """Its version is the one announced when it was admitted."""
    await said(queue, 7)
    await queue.admitted(**LIMITED)
    await said(queue, *later)
    move = await InitStage(Registry([Sums()]), None, queue.store, "n0").perform(await claimed(queue, Stage.INIT))
    record = ending(move)
    assert (record is not None) is expires
    if record is not None:
        assert (record.outcome, record.reward) == (Outcome.EXPIRED, None)
        assert "2 versions behind: 7 against the announced 9; max_staleness is 1" in (record.note or "")


@pytest.mark.parametrize(
    ("told", "later", "outcome"),
    [
        (("7", "7"), (8,), Outcome.COMPLETED),
        (("7", "8"), (8, 9), Outcome.EXPIRED),
        (("8", "8"), (8, 9), Outcome.COMPLETED),
        (None, (8,), Outcome.COMPLETED),
        (None, (8, 9), Outcome.EXPIRED),
        (("default", "default"), (8, 9), Outcome.EXPIRED),
    ],
)
async def test_a_finished_job_whose_first_token_is_too_old_expires(
    queue: Queue, told: tuple[str, str] | None, later: tuple[int, ...], outcome: Outcome
) -> None:
    """Where the backend tells no policy version, the one announced when RUN began counts."""
    await said(queue, 7)
    await queue.admitted(**LIMITED)
    [held] = await queue.take(Stage.INIT)
    await queue.store.advance([Advance(held, None, b"")])
    registry = Registry([Sums(told)])
    policy: Any = SimpleNamespace
    ran = await RunStage(registry, None, queue.store, policy, "n0").perform(await claimed(queue, Stage.RUN))
    assert isinstance(ran.item, Advance)
    assert await queue.store.advance([ran.item]) == ["advanced"]
    await said(queue, *later)
    move = await EvalStage(registry, None, queue.store).perform(await claimed(queue, Stage.EVAL))
    record = ending(move)
    assert record is not None
    assert record.outcome is outcome
    assert record.reward == (1.0 if outcome is Outcome.COMPLETED else None)
    assert record.evidence == ({"asked": ["3 + 4"]} if outcome is Outcome.COMPLETED else {})
    assert isinstance(move.item, Finish)
    assert await queue.store.finish([move.item]) == ["finished"]


def test_the_limit_travels_with_the_group() -> None:
    made = spec(**LIMITED)
    assert decode(encode(made), type(made)) == made
    assert encode(spec()) == encode(spec(max_staleness=None)), "old batches keep their digest"


class Exporting(Sums):
    """RUN ends without a trajectory, with an export of so many bytes."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    async def run(self, context: Any) -> Ran:
        return Ran(trajectory=None, export=b"x" * self._size)


@pytest.mark.parametrize(("size", "counted"), [(1 << 20, True), (17 << 20, False)])
async def test_an_export_counts_and_is_limited_without_a_trajectory_too(queue: Queue, size: int, counted: bool) -> None:
    await queue.admitted(**LIMITED)
    [held] = await queue.take(Stage.INIT)
    await queue.store.advance([Advance(held, None, b"")])
    stage = RunStage(Registry([Exporting(size)]), None, queue.store, SimpleNamespace, "n0")  # type: ignore[arg-type, list-item]
    item = (await stage.perform(await claimed(queue, Stage.RUN))).item
    if counted:
        assert isinstance(item, Advance)
        assert item.eval_bytes == len(item.carry) > size
    else:
        assert isinstance(item, Fail)
        assert "the handler exported 17 MiB; 16 MiB are allowed" in item.detail
