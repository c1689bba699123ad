"""Bridges give trainers what they asked for, in their order and their types, by a real API."""

import abc
import asyncio
import dataclasses
import sys
import types
import typing
from pathlib import Path
from typing import Any

import httpx
import pydantic
import pytest

from prorl_mq.client import AsyncClient
from prorl_mq.client.rollouts import Rollouts, close_shared
from prorl_mq.errors import NotTrainable
from prorl_mq.schema.messages import Outcome, Task
from tests.api.service import SOURCE, Worker
from tests.converters.made import compacted
from tests.converters.published import published
from tests.converters.test_skyrl import accepted
from tests.trainers.serving import EXAMPLES, bridge, question, serving

pytestmark = pytest.mark.anyio


async def test_samples_come_to_the_call_that_asked_and_are_acknowledged(url: str, worker: Worker) -> None:
    async with serving(worker, 5), AsyncClient(url) as client, Rollouts(client, "r") as rollouts:
        tasks = [Task(task_id=f"t{n}", data_source=SOURCE, payload=question(n)) for n in range(2)]
        one, two = await asyncio.gather(rollouts.of(tasks[0], n=2), rollouts.of(tasks[1], n=3))
        assert [[each.reward for each in found] for found in (one, two)] == [[0.0, 0.0], [1.0, 1.0, 1.0]]
        [run] = await client.runs()
        assert (run.unacked_groups, run.in_flight) == (0, 0)


async def test_a_sample_that_infrastructure_lost_is_never_made_up(url: str, worker: Worker) -> None:
    lost = {"outcome": Outcome.INFRA_ERROR, "reward": None}
    async with serving(worker, 2, **lost), AsyncClient(url) as client, Rollouts(client, "r") as rollouts:
        with pytest.raises(NotTrainable, match="0 of 1 samples"):
            await rollouts.of(Task(task_id="t", data_source=SOURCE, payload=question(1)))


async def test_a_call_that_is_cancelled_ends_its_rollouts(url: str, worker: Worker) -> None:
    async with AsyncClient(url) as client, Rollouts(client, "r") as rollouts, asyncio.timeout(100):
        asked = asyncio.create_task(rollouts.of(Task(task_id="t", data_source=SOURCE, payload=question(1))))
        held = await worker.in_run()
        asked.cancel()
        await worker.stop(held)
        await asyncio.wait({asked})
        assert asked.cancelled()


def verl() -> types.ModuleType:
    """Its types, register and base class as published; only what would load a tokenizer is left out."""
    foreign = ("DictConfig", "LLMServerClient", "AutoTokenizer", "AutoProcessor", "RLHFDataset")
    given: dict[str, Any] = {
        **dict.fromkeys(foreign, Any),
        "Image": types.SimpleNamespace(Image=Any),
        "torch": types.SimpleNamespace(Tensor=Any),
        "BaseModel": pydantic.BaseModel,
        "Any": Any,
        "Optional": typing.Optional,
        "ABC": abc.ABC,
        "abstractmethod": abc.abstractmethod,
        "create_continuous_token_builder": lambda *_, **__: None,
        "get_event_loop": asyncio.get_running_loop,
        "_agent_loop_registry": {},
        "__name__": __name__,
    }
    wanted = ["AgentLoopMetrics", "AgentLoopOutput", "AgentLoopBase", "DictConfigWrap", "register"]
    found = published("verl/experimental/agent_loop/agent_loop.py", wanted, given)
    module = types.ModuleType("verl_as_published")
    vars(module).update({name: found[name] for name in [*wanted, "_agent_loop_registry"]})
    return module


def verls_worker(theirs: types.ModuleType) -> dict[str, Any]:
    """What its worker gives to every agent loop that it makes."""
    rollout = types.SimpleNamespace(rollout=types.SimpleNamespace())
    config = types.SimpleNamespace(actor_rollout_ref=rollout)
    plain = dict.fromkeys(("server_manager", "tokenizer", "processor", "hf_model_type", "dataset_cls", "tools"))
    return {**plain, "trainer_config": theirs.DictConfigWrap(config), "data_config": theirs.DictConfigWrap({})}


async def test_verls_agent_loop_makes_its_output(url: str, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRORL_URL", url)
    made, theirs = bridge("verl_agent_loop"), verl()
    loop = made.agent_loop(theirs)(**verls_worker(theirs))
    assert isinstance(loop, theirs.AgentLoopBase)
    assert theirs._agent_loop_registry == {"prorl": {"_target_": "verl_agent_loop.ProrlAgentLoop"}}
    row = {"data_source": SOURCE, "extra_info": {"index": 7, **question(0.5)}, "raw_prompt": []}
    async with serving(worker, 1):
        output = await loop.run({"temperature": 0.7, "top_p": 1.0, "repetition_penalty": 1.0, "logprobs": True}, **row)
    assert isinstance(output, theirs.AgentLoopOutput)
    assert (output.reward_score, output.prompt_ids, sum(output.response_mask)) == (0.5, [1, 2], 8)
    await close_shared()


@pytest.fixture
def skyrl(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The bridge, which finds SkyRL's interface and ids as published."""
    names = {"ABC": abc.ABC, "abstractmethod": abc.abstractmethod, "dataclass": dataclasses.dataclass}
    given = {**names, **dict.fromkeys(("GeneratorInput", "GeneratorOutput"), Any), "__name__": __name__}
    parts = ["skyrl", "train", "generators", "base"]
    for place in range(1, len(parts) + 1):
        module = types.ModuleType(".".join(parts[:place]))
        monkeypatch.setitem(sys.modules, module.__name__, module)
    wanted = ["GeneratorInterface", "TrajectoryID"]
    found = published("/".join(parts) + ".py", wanted, given)
    vars(module).update({name: found[name] for name in wanted})
    return bridge("skyrl_generator")


async def test_skyrls_generator_keeps_order_and_count(skyrl: Any, url: str, worker: Worker) -> None:
    generator = skyrl.ProrlGenerator(url)
    assert isinstance(generator, skyrl.GeneratorInterface)
    batch: dict[str, Any] = {
        "prompts": [[], [], []],
        "env_classes": [SOURCE] * 3,
        "env_extras": [question(0.25), question(0.5), question(0.75)],
        "sampling_params": {"temperature": 1.0, "max_generate_length": 64, "min_p": 0.0, "logprobs": 1},
        "trajectory_ids": None,
        "batch_metadata": types.SimpleNamespace(global_step=3, training_phase="train"),
    }
    async with serving(worker, 3):
        made = await generator.generate(batch)
    assert made["rewards"] == [0.25, 0.5, 0.75]
    assert [each.to_string() for each in made["trajectory_ids"]] == ["prompt-0_0", "prompt-1_0", "prompt-2_0"]
    accepted({**made, "trajectory_ids": list(map(vars, made["trajectory_ids"]))}, 3, step_wise=False)
    asked = [types.SimpleNamespace(instance_id="a", repetition_id=n) for n in range(2)]
    two = {**batch, "prompts": [[], []], "trajectory_ids": asked}
    async with serving(worker, 2, trajectory=compacted().trajectory):
        made = await generator.generate(two)
    assert made["trajectory_ids"] == [asked[0], asked[0], asked[1], asked[1]]
    assert (made["is_last_step"], made["rewards"]) == ([False, True] * 2, [0.0, 0.25, 0.0, 0.5])


async def test_trls_rollout_function_gives_samples_in_the_order_of_the_prompts(url: str, worker: Worker) -> None:
    trl = bridge("trl_rollout_func")
    args = types.SimpleNamespace(temperature=1.0, top_p=1.0, max_completion_length=64)

    def task_of(prompt: str) -> Task:
        return Task(task_id=prompt, data_source=SOURCE, payload=question(float(prompt)))

    func = trl.rollout_func(url, task_of)
    prompts = ["0.5", "0.5", "0.25"]
    async with serving(worker, 3):
        made = await asyncio.to_thread(func, prompts, types.SimpleNamespace(args=args))
    assert trl.rewards(completions=[], reward=made["reward"]) == [0.5, 0.5, 0.25]
    lengths = {name: [len(each) for each in made[name]] for name in ("completion_ids", "logprobs", "env_mask")}
    assert all(each == [13, 13, 13] for each in lengths.values())
    assert made["prompt_ids"] == [[1, 2]] * 3


@pytest.fixture
def gym(monkeypatch: pytest.MonkeyPatch, url: str) -> Any:
    monkeypatch.setenv("PRORL_URL", url)
    return bridge("nemo_gym_agent").app


async def test_nemo_gyms_agent_answers_a_row_with_response_and_reward(gym: Any, worker: Worker) -> None:
    row = {
        "responses_create_params": {"input": [{"role": "user", "content": "?"}], "temperature": 1.0},
        "prorl": {"task_id": "t", "data_source": SOURCE, "payload": question(0.75)},
        "_ng_task_index": 3,
    }
    async with gym.router.lifespan_context(gym), serving(worker, 1):
        transport = httpx.ASGITransport(gym)
        async with httpx.AsyncClient(transport=transport, base_url="http://gym", timeout=90) as client:
            answer = (await client.post("/run", json=row)).json()
            wrong = await client.post("/run", json={"responses_create_params": {}})
    assert wrong.status_code == 422
    response = answer.pop("response")
    assert answer == {**row, "reward": 0.75}
    trained = [item for item in response["output"] if "prompt_token_ids" in item]
    whole: list[int] = []
    for item in trained:
        assert item["prompt_token_ids"][: len(whole)] == whole
        whole = item["prompt_token_ids"] + item["generation_token_ids"]
    assert len(trained) == 3


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_a_bridge_stays_thin(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 150
