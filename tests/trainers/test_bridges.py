"""Bridges give trainers what they asked for, in their order and their types, by a real API."""

import asyncio
import contextlib
import sys
import types
import typing
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pydantic
import pytest

from prorl_mq import bridges
from prorl_mq.bridges import nemo_gym, trl
from prorl_mq.bridges.tasks import task_of
from prorl_mq.bridges.theirs import ServiceRun, imported
from prorl_mq.client import AsyncClient
from prorl_mq.client.rollouts import Rollouts, sampling_of
from prorl_mq.client.transport import ClosedGroup
from prorl_mq.errors import InvalidBatch, InvalidTask, NotTrainable, ServiceError
from prorl_mq.schema.messages import Task
from tests.api.service import SOURCE, Worker
from tests.converters.made import ALL, two_models, with_tools
from tests.converters.published import published
from tests.trainers.serving import LOST, MATH, question, row, serving, standard

pytestmark = pytest.mark.anyio


async def test_samples_come_to_the_call_that_asked_and_are_acknowledged(url: str, worker: Worker) -> None:
    async with serving(worker, 5), AsyncClient(url) as client, Rollouts(client, "five") as rollouts:
        tasks = [Task(task_id=f"t{n}", data_source=SOURCE, payload=question(n)) for n in range(2)]
        one, two = await asyncio.gather(rollouts.of(tasks[0], n=2), rollouts.of(tasks[1], n=3))
        assert [[each.reward for each in found] for found in (one, two)] == [[0.0, 0.0], [1.0, 1.0, 1.0]]
        [run] = [each for each in await client.runs() if each.run_id == "five"]
        assert (run.unacked_groups, run.in_flight) == (0, 0)


async def test_a_sample_that_infrastructure_lost_is_never_made_up_and_the_message_says_why(
    url: str, worker: Worker
) -> None:
    async with serving(worker, 2, **LOST), AsyncClient(url) as client, Rollouts(client, "r") as rollouts:
        with pytest.raises(NotTrainable, match=r"'t' \(echo\): 0 of 1 samples.* ended infra_error"):
            await rollouts.of(Task(task_id="t", data_source=SOURCE, payload=question(1)))


async def test_a_call_that_is_cancelled_ends_its_rollouts(url: str, worker: Worker) -> None:
    async with AsyncClient(url) as client, Rollouts(client, "r") as rollouts, asyncio.timeout(100):
        asked = asyncio.create_task(rollouts.of(Task(task_id="t", data_source=SOURCE, payload=question(1))))
        held = await worker.in_run()
        asked.cancel()
        await worker.stop(held)
        await asyncio.wait({asked})
        assert asked.cancelled()


async def test_leaving_ends_what_was_asked_for_and_has_not_come(url: str, worker: Worker) -> None:
    """A sibling's failure leaves a gather behind whose other calls nobody waits for."""
    async with asyncio.timeout(100), AsyncClient(url) as client:
        async with Rollouts(client, "r") as rollouts:
            asked = asyncio.create_task(rollouts.of(Task(task_id="t", data_source=SOURCE, payload=question(1))))
            held = await worker.in_run()
        await worker.stop(held)
        with pytest.raises(NotTrainable, match="nobody reads the results of run 'r'"):
            await asked


async def test_results_that_cannot_be_read_reach_who_waits_and_the_next_call_reads_again(
    url: str, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call that began the reader has often ended long before: nobody else would hear of it."""

    async def refused(run_id: str) -> AsyncIterator[ClosedGroup]:
        raise ServiceError(f"500 Internal Server Error: {run_id}", status=500)
        yield

    task = Task(task_id="t", data_source=SOURCE, payload=question(1))
    async with asyncio.timeout(100), AsyncClient(url) as client, Rollouts(client, "unread") as rollouts:
        with monkeypatch.context() as patch:
            patch.setattr(client, "results", refused)
            with pytest.raises(ServiceError, match="results of run 'unread' cannot be read: ServiceError: 500"):
                await asyncio.create_task(rollouts.of(task))
        async with serving(worker, 1):
            [found] = await rollouts.of(task)
        assert found.reward == 1.0


async def test_a_sample_without_tokens_hides_no_other_and_its_group_is_acknowledged(url: str, worker: Worker) -> None:
    """An agent that never asked the policy has a score."""
    task = Task(task_id="t", data_source=SOURCE, payload=question(1))
    mute = msgspec.structs.replace(with_tools().trajectory, segments=[], turns=[])
    async with asyncio.timeout(100), AsyncClient(url) as client, Rollouts(client, "mute") as rollouts:
        asked = asyncio.create_task(rollouts.ask(task, n=2))
        for trajectory in (mute, with_tools().trajectory):
            await worker.finish(await worker.in_run(), trajectory=trajectory)
        came = await asked
        assert len(came.rollouts) == 1
        assert "1 of 2 samples can be trained on" in came.lost
        assert "ended completed and sampled no token" in came.lost
        [run] = [each for each in await client.runs() if each.run_id == "mute"]
        assert run.unacked_groups == 0


@pytest.mark.parametrize(("model", "rows"), [("", 2), ("critic", 1)])
async def test_a_bridge_gets_the_rows_of_the_model_that_it_trains(
    url: str, worker: Worker, model: str, rows: int
) -> None:
    """The task trains two; the call has the other's part of the same sample, too."""
    run = ServiceRun(url=url, run_id=f"of-{model}", model=model)
    async with serving(worker, 1, trajectory=two_models().trajectory):
        [found] = await (await run.rollouts()).of(run.task(row(1)))
    assert [len(found.rows), len(found.of("critic").rows), len(found.of("").rows)] == [rows, 1, 2]


async def test_a_model_that_a_sample_does_not_train_is_a_lost_sample(url: str, worker: Worker) -> None:
    async with serving(worker, 1), AsyncClient(url) as client, Rollouts(client, "none", model="critic") as rollouts:
        came = await rollouts.ask(Task(task_id="t", data_source=SOURCE, payload=question(1)))
    assert came.rollouts == []
    assert "sampled no token that model 'critic' is trained on" in came.lost


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"repetition_penalty": 1.1}, "repetition_penalty=1.1: set it to 1"),
        ({"stop": ["x"]}, "stop="),
        ({"ignore_eos": True}, "ignore_eos=True: set it to False"),
        ({"use_beam_search": True}, "use_beam_search=True"),
        ({"bad_words": ["x"]}, "bad_words="),
    ],
)
def test_a_parameter_that_would_change_what_is_sampled_is_refused_by_name(given: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidBatch, match=told):
        sampling_of(given)


def test_neutral_parameters_and_those_of_engines_are_left_out() -> None:
    made = sampling_of({"repetition_penalty": 1.0, "min_p": 0.0, "stop": [], "logprobs": 1, "max_tokens": 7})
    assert (made.max_tokens_per_turn, made.max_tokens) == (7, 32768)


def test_a_row_of_verl_or_skyrl_is_a_task_of_its_family() -> None:
    made = task_of({**standard(4.0, 7), "uid": "u", "raw_prompt": np.array([{"role": "user", "content": "What?"}])})
    assert (made.task_id, made.data_source) == ("train-7", MATH)
    assert made.payload["prompt"] == [{"role": "user", "content": "What?"}]
    assert made.payload["reward_model"]["ground_truth"] == "4.0"
    spec = {"data_source": "x", "question": "q", "reward_spec": {"method": "rule", "ground_truth": np.float64(2)}}
    assert task_of(spec, {"x": "math"}).data_source == "math"
    assert task_of(spec).payload == {"prompt": "q", "reward_model": {"method": "rule", "ground_truth": 2.0}}
    assert task_of({"data_source": "s", "prompt": "p", "answer": 0}).payload["reward_model"] == {"ground_truth": 0}


def test_a_row_without_an_answer_has_its_extra_info_as_payload_and_repeats_have_one_name() -> None:
    made = [
        task_of({"data_source": "g", "extra_info": {"seed": np.int64(3)}, "reward_model": {"ground_truth": ""}})
        for _ in range(2)
    ]
    assert made[0].payload == {"seed": 3}
    assert made[0].task_id == made[1].task_id


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"prompt": "p"}, "names no `data_source`"),
        ({"prorl": {"task": "t"}}, "is not a task"),
        ({"data_source": "s", "answer": 1}, "an answer and no prompt"),
        ({"data_source": "s", "extra_info": {"image": object()}}, "holds a object"),
    ],
)
def test_a_row_that_is_no_task_is_refused_with_the_reason(given: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidTask, match=told):
        task_of(given)


@pytest.mark.parametrize("path", sorted(Path(bridges.__file__).parent.glob("*.py")), ids=lambda path: path.stem)
def test_a_bridge_stays_thin(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 230


def test_a_trainer_that_is_not_there_is_named_with_what_to_install() -> None:
    with pytest.raises(ImportError, match=r"needs verl>=0.9: pip install 'verl>=0.9'"):
        imported("no_such_trainer.loop", "verl>=0.9")
    with pytest.raises(ImportError, match=r"needs rllm \(from its repository\)$"):
        imported("no_such_trainer.loop", "rllm (from its repository)")


@pytest.mark.parametrize(
    "fault",
    ["import no_such", "raise ImportError('no CUDA here')"],
    ids=["a package whose name begins its own", "none"],
)
def test_a_trainer_that_is_there_and_lacks_something_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    (tmp_path / "no_such_tool.py").write_text(fault)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match=r"verl-tool is installed, but cannot be imported: (No module named|no CUDA)"):
        imported("no_such_tool", "verl-tool")


@pytest.fixture
def gym(url: str) -> Any:
    return nemo_gym.create_app(url)


@pytest.fixture
def call(gym: Any) -> Callable[..., Any]:
    async def post(path: str, body: Any) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(gym), base_url="http://gym", timeout=90) as client:
            return await client.post(path, json=body)

    return post


def of_gym(task: dict[str, Any]) -> dict[str, Any]:
    return {"responses_create_params": {"input": [{"role": "user", "content": "What is it?"}]}, **task}


async def test_nemo_gyms_agent_answers_a_row_with_response_and_reward(gym: Any, call: Any, worker: Worker) -> None:
    asked = of_gym({**row(0.75), "_ng_task_index": 3})
    async with gym.router.lifespan_context(gym), serving(worker, 2):
        answer = (await call("/run", asked)).json()
        plain = await call("/run", of_gym({"data_source": MATH, "expected_answer": "0.5"}))
        wrong = await call("/run", {"responses_create_params": {}})
        refused = await call("/run", of_gym({"data_source": "nobody", "expected_answer": "0.5"}))
    assert (plain.status_code, plain.json()["reward"]) == (200, 0.5)
    assert (wrong.status_code, refused.status_code) == (422, 422)
    assert "nobody" in refused.json()["detail"]
    response = answer.pop("response")
    assert answer == {**asked, "reward": 0.75}
    trained = [item for item in response["output"] if "prompt_token_ids" in item]
    whole: list[int] = []
    for item in trained:
        assert item["prompt_token_ids"][: len(whole)] == whole
        whole = item["prompt_token_ids"] + item["generation_token_ids"]
    assert len(trained) == 3


def nemo_rls_message_log(response: dict[str, Any]) -> list[dict[str, Any]]:
    """As its `_postprocess_nemo_gym_to_nemo_rl_result` makes one of an answer, by its source of August 2026."""
    made: list[dict[str, Any]] = []
    seen: list[int] = []
    for item in response["output"]:
        if not item.get("generation_token_ids"):
            continue
        assert seen == item["prompt_token_ids"][: len(seen)], "non-contiguous messages"
        fresh = item["prompt_token_ids"][len(seen) :]
        made.append({"role": "user", "token_ids": fresh})
        answer = {"token_ids": item["generation_token_ids"], "generation_logprobs": item["generation_log_probs"]}
        made.append({"role": "assistant", **answer})
        seen += [*fresh, *item["generation_token_ids"]]
    return made


@pytest.mark.parametrize("case", ALL)
def test_nemo_rl_makes_the_drawn_row_of_an_answer_again(case: str) -> None:
    found = ALL[case]()
    log = nemo_rls_message_log(nemo_gym.response({}, found))
    drawn = found.rows[found.drawn]
    ids = [each for message in log for each in message["token_ids"]]
    assert ids == [*drawn.prompt_ids, *drawn.response_ids][: len(ids)]
    sampled = [each for message in log if message["role"] == "assistant" for each in message["generation_logprobs"]]
    assert sampled == [each for each in drawn.logprobs if each is not None]


def test_metrics_have_nemo_gyms_names_and_leave_masked_answers_out() -> None:
    rewards = [(0, 0, 1.0), (0, 1, 0.0), (1, 0, 0.5), (1, 1, 0.5)]
    answers = [{"_ng_task_index": task, "_ng_rollout_index": n, "reward": each} for task, n, each in rewards]
    masked = {"_ng_task_index": 2, "_ng_rollout_index": 0, "reward": 9.0, "mask_sample": True}
    made = nemo_gym.aggregated([*answers, masked])
    first, second = made["group_level_metrics"]
    assert (first["_ng_task_index"], first["mean/reward"], first["max/reward"], first["min/reward"]) == (0, 0.5, 1.0, 0)
    assert first["std/reward"] == pytest.approx(0.5**0.5)
    assert (second["median/reward"], second["std/reward"]) == (0.5, 0.0)
    assert made["key_metrics"]["mean/reward"] == 0.5
    assert (made["agent_metrics"]["coverage/masked_rollouts"], made["agent_metrics"]["num_repeats"]) == (1, 2)
    names: dict[str, Any] = {name: getattr(typing, name) for name in ("Any", "Dict", "List", "Optional")}
    given = {**names, "BaseModel": pydantic.BaseModel, "Field": pydantic.Field, "__name__": __name__}
    theirs = published("nemo_gym/config_types.py", ["AggregateMetrics"], given)["AggregateMetrics"]
    assert theirs(**made).key_metrics == made["key_metrics"]


async def test_nemo_gyms_agent_aggregates_and_refuses_what_it_cannot_read(gym: Any, call: Any) -> None:
    async with gym.router.lifespan_context(gym):
        made = await call("/aggregate_metrics", {"verify_responses": [{"_ng_task_index": 0, "reward": 1.0}]})
        wrong = await call("/aggregate_metrics", {"verify_responses": 3})
    assert (made.status_code, made.json()["key_metrics"]) == (200, {"mean/reward": 1.0})
    assert wrong.status_code == 422


async def test_nemo_gyms_agent_has_no_reward_for_a_lost_sample_and_the_answer_can_be_repeated(
    gym: Any, call: Any, worker: Worker
) -> None:
    async with gym.router.lifespan_context(gym), serving(worker, 2, **LOST):
        lost = await call("/run", of_gym(row(1)))
    assert (lost.status_code, lost.headers["retry-after"]) == (503, "1")
    assert "infra_error" in lost.json()["detail"]


def of_trl(url: str) -> Callable[..., Any]:
    return trl.rollout_func(url, lambda each: Task(task_id=each, data_source=SOURCE, payload=question(float(each))))


def trainer(args: Any, *, trains: bool = True, **more: Any) -> Any:
    return types.SimpleNamespace(args=args, model=types.SimpleNamespace(training=trains), **more)


async def test_trls_rollout_function_gives_samples_in_the_order_of_the_prompts(url: str, worker: Worker) -> None:
    args = types.SimpleNamespace(temperature=1.0, top_p=1.0, top_k=0, repetition_penalty=1.0, max_completion_length=8)
    async with serving(worker, 3):
        made = await asyncio.to_thread(of_trl(url), ["0.5", "0.5", "0.25"], trainer(args))
    assert trl.rewards(completions=[0] * 3, reward=made["reward"]) == [0.5, 0.5, 0.25]
    lengths = {name: [len(each) for each in made[name]] for name in ("completion_ids", "logprobs", "env_mask")}
    assert all(each == [7, 7, 7] for each in lengths.values())  # of 13, the rest is beyond TRL's length
    assert made["prompt_ids"] == [[1, 2]] * 3


async def test_a_sample_that_trl_loses_has_no_reward_and_no_part_in_a_baseline(url: str, worker: Worker) -> None:
    args = types.SimpleNamespace(temperature=1.0, top_p=1.0, max_completion_length=64)
    async with serving(worker, 5):
        made = await asyncio.to_thread(of_trl(url), ["-1", "0.25"], trainer(args))
        assert made["reward"] == [None, 0.25]
        assert [sum(mask) for mask in made["env_mask"]] == [0, 8]
        with pytest.raises(NotTrainable, match=r"no prompt of the batch.*infra_error"):
            await asyncio.to_thread(of_trl(url), ["-1"], trainer(args))


async def test_a_process_of_trls_that_lost_all_its_samples_raises_only_with_the_others(
    url: str, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = types.SimpleNamespace(temperature=1.0, top_p=1.0, max_completion_length=64)
    two = trainer(args, accelerator=types.SimpleNamespace(num_processes=2))
    async with serving(worker, 4):
        for others, loses in ((True, False), (False, True)):
            gathers = types.SimpleNamespace(gather_object=lambda mine, others=others: [*mine, others])
            monkeypatch.setitem(sys.modules, "accelerate.utils", gathers)
            with pytest.raises(NotTrainable) if loses else contextlib.nullcontext():
                made = await asyncio.to_thread(of_trl(url), ["-1"], two)
    assert (made["reward"], made["env_mask"]) == ([None], [[0]])


async def test_trls_rollout_function_runs_inside_an_event_loop_as_a_notebook_has_one(url: str, worker: Worker) -> None:
    args = types.SimpleNamespace(temperature=1.0, top_p=1.0, max_completion_length=64)

    async def cell() -> Any:
        return of_trl(url)(["0.5"], trainer(args))

    async with serving(worker, 1):
        made = await asyncio.to_thread(asyncio.run, cell())
    assert made["reward"] == [0.5]


@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "dr_grpo"])
def test_rows_weigh_in_trls_losses_what_their_sample_weighs_with_one_row(loss_type: str) -> None:
    """A loss of 1 for each trained token: its size does not depend on how a sample is divided into rows."""

    def loss(rows: list[tuple[int, float]]) -> float:
        counts = [count for count, _ in rows]
        weights = trl.row_weights([share for _, share in rows], 2, loss_type)
        if loss_type == "grpo":
            return sum(weights) / len(rows)
        size = sum(counts) if loss_type == "dapo" else len(rows) * 64
        return sum(weight * count for weight, count in zip(weights, counts, strict=True)) / size

    assert loss([(6, 0.6), (10, 1.0), (4, 0.4), (0, 0.0)]) == pytest.approx(loss([(10, 1.0), (10, 1.0)]))
