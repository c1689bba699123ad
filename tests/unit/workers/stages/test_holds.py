"""A stage has its job's lease before it makes, uses or stores what others must know as its own."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from prorl_mq.schema.messages import Stage
from prorl_mq.schema.trajectory import Trajectory
from prorl_mq.store.payloads.writing import StoredPayload
from tests.unit.workers.stages.test_returned import ANY, SOURCE, work
from workers.handler import Handler, Ran
from workers.stages.backends import HeapAssigner
from workers.stages.contexts import EvalContext, InitContext
from workers.stages.registry import Registry
from workers.stages.run import RunStage
from workers.stages.stage import packed
from workers.stages.work import Carried, Work

pytestmark = pytest.mark.anyio


class Steps(list[str]):
    """What was done, in order; as a provider, it makes and attaches nothing."""

    def of(self, stage: Stage, **carried: Any) -> Work:
        """A job whose lease is a step, too."""

        async def hold(_work: Work) -> None:
            self.append("hold")

        made = work(stage)
        claim = made.claim._replace(carry=packed(Carried(**carried)))
        return msgspec.structs.replace(made, claim=claim, holds=hold)

    async def create(self, _spec: Any) -> Any:
        self.append("create")
        return SimpleNamespace()

    async def attach(self, _handle: Any) -> Any:
        self.append("attach")
        return SimpleNamespace(close=self._close)

    async def _close(self) -> None:
        self.append("close")


@pytest.mark.parametrize("stage", [Stage.INIT, Stage.EVAL])
async def test_before_a_sandbox_is_made(stage: Stage) -> None:
    steps = Steps()
    if stage is Stage.INIT:
        context: Any = InitContext(steps.of(stage), cast("Any", steps))
    else:
        about: dict[str, Any] = {"sealed": {}, "export": None, "trajectory": None, "truncated": False}
        context = EvalContext(steps.of(stage), cast("Any", steps), **about, agent_error=None, repeated=False)
    await context.sandbox()
    assert steps == ["hold", "create"]


class Agent:
    """Leaves a trajectory."""

    data_sources = (SOURCE,)

    async def run(self, _context: Any) -> Ran:
        return Ran(trajectory=Trajectory(segments=[], turns=[], stop_reason="answer"))


async def test_before_a_sandbox_is_attached_and_a_trajectory_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps()

    async def put(*_: Any, **__: Any) -> StoredPayload:
        steps.append("put")
        return StoredPayload("key")

    monkeypatch.setattr("prorl_mq.store.payloads.writing.put", put)
    handle = {"kind": "local", "node": "n0", "sandbox_id": "s", "directory": "/", "pid": 1, "pid_started": "1"}
    registry = Registry([cast("Handler", Agent())])
    stage = RunStage(registry, cast("Any", steps), ANY, ANY, "n0")
    await stage.perform(steps.of(Stage.RUN, sandbox=handle))
    assert steps == ["hold", "attach", "hold", "put", "close"]


async def test_before_a_backend_is_taken() -> None:
    steps = Steps()

    async def view(_pool: str) -> Any:
        steps.append("view")
        await asyncio.Event().wait()

    assigner = HeapAssigner(cast("Any", SimpleNamespace(view=view, store=ANY, rooms=ANY)), steps.of(Stage.RUN))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await assigner.assign("j", "t", exclude=frozenset())
    assert steps == ["hold", "view"]
