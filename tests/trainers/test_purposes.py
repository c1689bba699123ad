"""What a trainer's evaluation asks for is an evaluation, and rows name the hosts that their sandboxes may reach."""

import asyncio
import contextlib
import sys
import types
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import numpy as np
import pytest

from prorl_mq.bridges import skyrl, trl, verl
from prorl_mq.bridges.tasks import task_of
from prorl_mq.client.rollouts import Rollouts, close_shared
from prorl_mq.errors import InvalidTask
from prorl_mq.schema.messages import Purpose, Task
from tests.api.service import Worker
from tests.converters.published import published_method
from tests.trainers import test_bridges, test_from_source, test_rllm, test_skyrl, test_verl
from tests.trainers.serving import question, row, serving, standard

pytestmark = pytest.mark.anyio
verl_as_published, skyrl_as_published, rllm_workflow = test_verl.theirs, test_skyrl.theirs, test_rllm.theirs


class Asked:
    """What a bridge has asked the service for."""

    def __init__(self) -> None:
        self.purposes: list[Purpose] = []
        self.tasks: list[Task] = []


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    found, ask = Asked(), Rollouts.ask

    async def noted(self: Rollouts, task: Task, **more: Any) -> Any:
        found.tasks.append(task)
        found.purposes.append(more["purpose"])
        return await ask(self, task, **more)

    monkeypatch.setattr(Rollouts, "ask", noted)
    return found


async def test_a_validation_of_verls_is_an_evaluation(
    url: str, worker: Worker, verl_as_published: Any, asked: Asked
) -> None:
    """Its worker's own method calls the loop: nothing else tells the two apart."""
    loop = test_verl.loop_of(verl_as_published, url, test_verl.config())
    given = {
        "Any": Any,
        "AgentLoopOutput": verl_as_published.AgentLoopOutput,
        "_InternalAgentLoopOutput": Any,
        "_agent_loop_registry": {"prorl": None},
        "rollout_trace_attr": lambda **_: contextlib.nullcontext(),
        "hydra": types.SimpleNamespace(utils=types.SimpleNamespace(instantiate=lambda **_: loop)),
        "DictConfigWrap": lambda config: config,
        "ToolListWrap": lambda tools: tools,
    }
    module = "verl/experimental/agent_loop/agent_loop.py"
    called = published_method(module, "AgentLoopWorker", verl.WORKERS_CALL, given)
    nothing = ("llm_client", "tokenizer", "processor", "hf_model_type", "dataset_cls", "tools")
    theirs = types.SimpleNamespace(**dict.fromkeys(nothing), config=types.SimpleNamespace(data=None))

    async def as_it_came(output: Any, *_: Any, **__: Any) -> Any:
        return output

    theirs._agent_loop_postprocess = as_it_came
    async with serving(worker, 3):
        for validates in (False, True):
            place = {"step": 1, "sample_index": 0, "rollout_n": 0, "validate": validates}
            await called(theirs, test_verl.SAMPLED, place, agent_name="prorl", trace=False, **standard(0.5))
        await loop.run(test_verl.SAMPLED, **standard(0.5))  # by anybody else
    assert asked.purposes == [Purpose.TRAIN, Purpose.EVAL, Purpose.TRAIN]


async def test_an_evaluation_of_areals_is_one(
    url: str, worker: Worker, monkeypatch: pytest.MonkeyPatch, asked: Asked
) -> None:
    async with serving(worker, 2):
        for evaluates in (False, True):
            kind: Any
            kind, gconfig = test_from_source.areals(monkeypatch, evaluates=evaluates)
            await kind(url, gconfig).arun_episode(None, row(0.5))
    assert asked.purposes == [Purpose.TRAIN, Purpose.EVAL]


async def test_an_evaluation_of_trls_is_one(url: str, worker: Worker, asked: Asked) -> None:
    args = types.SimpleNamespace(temperature=1.0, top_p=1.0, max_completion_length=64)
    roll_out = trl.rollout_func(url, lambda each: Task(task_id=each, data_source="echo", payload=question(1.0)))
    async with serving(worker, 2):
        for trains in (True, False):
            await asyncio.to_thread(roll_out, ["p"], test_bridges.trainer(args, trains=trains))
    assert asked.purposes == [Purpose.TRAIN, Purpose.EVAL]


HOSTS = ["pypi.org", "files.example.org:443"]


@pytest.mark.parametrize(
    "columns",
    [{"egress": HOSTS}, {"egress": np.array(HOSTS)}, {"egress": tuple(HOSTS)},
     {"extra_info": {**standard(0.5)["extra_info"], "egress": HOSTS}}],
    ids=["list", "array", "tuple", "extra_info"],
)  # fmt: skip
def test_a_row_lists_the_hosts_that_its_sandbox_may_reach(columns: dict[str, Any]) -> None:
    task = task_of(standard(0.5) | columns)
    assert task.egress == HOSTS
    assert "egress" not in task.payload["extra_info"]
    assert task_of(standard(0.5)).egress == []


@pytest.mark.parametrize("column", ["pypi.org", [1], {"pypi.org": 443}])
def test_what_is_no_list_of_hosts_is_refused_and_not_left_out(column: Any) -> None:
    with pytest.raises(InvalidTask, match=r"`egress` is no list of hosts, NAME or NAME:PORT, but"):
        task_of(standard(0.5) | {"egress": column})


async def test_skyrls_extras_may_list_them(url: str, worker: Worker, skyrl_as_published: Any, asked: Asked) -> None:
    generator = skyrl.generator(skyrl_as_published)(url, test_skyrl.configured(wise=False))
    wanted = test_skyrl.batch(skyrl_as_published, 0.5, n=1)
    wanted["env_extras"][0]["egress"] = HOSTS
    async with serving(worker, 1):
        await generator.generate(wanted)
    assert [task.egress for task in asked.tasks] == [HOSTS]


async def test_what_trainers_send_to_their_workers_works_there(
    url: str, worker: Worker, skyrl_as_published: Any, rllm_workflow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SkyRL's, rLLM's and AReaL's processes get these objects pickled, also those that have asked for rollouts already:
    connections stay behind, and are opened again by the event loop that asks. (verl's loops hold an event loop of
    their own: its workers make them where they run.)
    """
    alone: Any
    alone, gconfig = test_from_source.areals(monkeypatch)
    known = [skyrl.generator(skyrl_as_published), rllm_workflow, alone]
    for kind in (*known, skyrl_as_published.GeneratorInterface, skyrl_as_published.TrajectoryID):
        monkeypatch.setitem(vars(sys.modules[kind.__module__]), kind.__name__, kind)  # where pickle looks for it
    engine = types.SimpleNamespace(is_validation=False, max_prompt_length=512, max_response_length=256)
    made = (
        known[0](url, test_skyrl.configured(wise=False)),
        rllm_workflow(rollout_engine=engine, executor=None, store=None, url=url),
        alone(url, gconfig),
    )

    async def used(generator: Any, flow: Any, workflow: Any) -> list[float]:
        output = await generator.generate(test_skyrl.batch(skyrl_as_published, 0.5, n=1))
        episode = await flow.run(task=row(0.25), uid="t:0")
        arrays = await workflow.arun_episode(None, row(0.75))
        return [output["rewards"][0], episode.trajectories[0].reward, arrays["rewards"]]

    async def elsewhere(pickled: bytes) -> list[float]:
        try:
            return await used(*cloudpickle.loads(pickled))
        finally:
            await close_shared()

    async with serving(worker, 6):
        first = await used(*made)
        pickled = cloudpickle.dumps(made)
        again = await asyncio.to_thread(lambda: asyncio.run(elsewhere(pickled)))
    assert first == again == [0.5, 0.25, 0.75]
