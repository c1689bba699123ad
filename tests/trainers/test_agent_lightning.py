"""The rollout manager of Agent Lightning's own trainer gets its rollouts from the bridge, over HTTP."""

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from prorl_mq.schema.messages import Outcome
from tests.api.service import Worker
from tests.converters.made import compacted
from tests.converters.published import importable
from tests.trainers.serving import row, serving

pytestmark = pytest.mark.anyio


@contextlib.asynccontextmanager
async def bridge_at(url: str) -> AsyncIterator[str]:
    """Started as its page says, on a free port."""
    command = (sys.executable, "-m", "uvicorn", "--port", "0", "prorl_mq.bridges.agent_lightning:app")
    process = await asyncio.create_subprocess_exec(*command, env={**os.environ, "PRORL_URL": url}, stderr=PIPE)
    assert process.stderr is not None
    try:
        said = [""]
        async with asyncio.timeout(60):
            while "running on http" not in said[-1]:
                said.append((await process.stderr.readline()).decode())
                assert said[-1], "".join(said)
        yield said[-1].partition("running on ")[2].split()[0]
    finally:
        process.terminate()
        await process.communicate()


@pytest.fixture(scope="module")
async def bridge(url: str) -> AsyncIterator[str]:
    async with bridge_at(url) as address:
        yield address


@pytest.fixture
async def calls(bridge: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=bridge, timeout=60) as client:
        yield client


@pytest.fixture
def manager(bridge: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """As their trainer makes it for each step; it calls and waits in a thread."""
    importable(monkeypatch)
    from agentlightning.verl.agl_rollout_manager import AglRolloutManager

    return AglRolloutManager(
        agl_base_url=bridge, agl_key="", model="m", step=3, train_rollout_n=2, poll_interval_seconds=0.05
    )


def column(*numbers: float) -> dict[str, Any]:
    """Rows as their data loader hands them over."""
    rows = [row(number, f"t{number}") for number in numbers]
    return {"prorl": [each["prorl"] for each in rows]}


async def test_their_manager_gets_groups_of_triplets_with_the_reward_in_the_last(
    manager: Any, calls: httpx.AsyncClient, worker: Worker
) -> None:
    async with serving(worker, 4):
        made = await asyncio.to_thread(manager.enqueue_and_wait_until_completed, column(0.25, 0.5), is_train=True)
    found = sorted(made, key=lambda each: each.sample_idx_in_step)
    assert [each.final_reward for each in found] == [0.25, 0.25, 0.5, 0.5]
    assert {each.rollout_state for each in found} == {"succeeded"}
    assert len({each.data_id for each in found}) == 2
    for each in found:
        whole: list[int] = []
        for turn in each.triplets:
            assert turn.prompt["token_ids"][: len(whole)] == whole
            assert len(turn.response["token_ids"]) == len(turn.response["log_probs"]) > 0
            whole = turn.prompt["token_ids"] + turn.response["token_ids"]
        assert [turn.reward for turn in each.triplets] == [None, None, each.final_reward]
        assert (await calls.get(f"/api/rollouts/{each.rollout_id}")).status_code == 404  # it deletes what it has


async def test_turns_of_all_segments_come_in_order(manager: Any, worker: Worker) -> None:
    async with serving(worker, 1, trajectory=compacted().trajectory):
        [made] = await asyncio.to_thread(manager.enqueue_and_wait_until_completed, column(0.5), is_train=False)
    assert [turn.prompt["token_ids"][:3] for turn in made.triplets] == [[1, 2], [1, 2, 3], [1, 2, 3]]
    assert [turn.metadata["server"]["version"] for turn in made.triplets] == [7, 8, 9]


async def test_a_sample_that_infrastructure_lost_has_failed_and_has_no_reward(manager: Any, worker: Worker) -> None:
    async with serving(worker, 2, outcome=Outcome.INFRA_ERROR, reward=None):
        [made] = await asyncio.to_thread(manager.enqueue_and_wait_until_completed, column(0.5), is_train=False)
    assert (made.rollout_state, made.triplets, made.final_reward) == ("failed", [], None)
    assert "0 of 1 samples" in made.error_message


async def test_an_id_that_comes_again_is_the_same_rollout_and_a_deleted_one_stops(
    calls: httpx.AsyncClient, worker: Worker
) -> None:
    body = [{"rollout_id": "mine", "input": row(0.5)}]
    first, second = [await calls.post("/api/rollouts", json=body) for _ in range(2)]
    assert (first.status_code, second.status_code) == (201, 201)
    held = await worker.in_run()
    shown = (await calls.get("/api/rollouts/mine")).json()["rollout"]
    assert shown["status"]["state"] == "running"
    assert shown["status"]["created_at"] == first.json()[0]["status"]["created_at"]
    for _ in range(2):
        assert (await calls.delete("/api/rollouts/mine")).status_code == 204
    async with asyncio.timeout(100):
        await worker.stop(held)


async def test_a_hook_of_the_trainer_may_give_another_reward_and_it_counts(manager: Any, worker: Worker) -> None:
    from agentlightning.hooks import RolloutHooks

    class Doubled(RolloutHooks):
        """As a user of theirs writes it."""

        def on_succeeded(self, rollout: Any, events: dict[str, list[Any]], store: Any) -> None:
            [attempt] = events
            value = 2 * events[attempt][-1].data["value"]
            store.add_event(rollout.rollout_id, attempt, "reward", {"value": value})

    manager._hooks = Doubled()
    async with serving(worker, 1):
        [made] = await asyncio.to_thread(manager.enqueue_and_wait_until_completed, column(0.5), is_train=False)
    assert (made.final_reward, made.triplets[-1].reward) == (1.0, 1.0)


async def test_servers_of_the_trainer_join_the_pool(manager: Any, url: str) -> None:
    """It takes all out and registers them again before each step."""
    for _ in range(2):
        assert await asyncio.to_thread(manager.delete_model) == {"status": "ok"}
        [model] = await asyncio.to_thread(manager.register_model, ["127.0.0.1:9"])
        assert (model.model, model.endpoint) == ("m", "http://127.0.0.1:9/v1")
    async with httpx.AsyncClient(base_url=url) as service:
        found = (await service.get("/v1/pools/policy/backends")).json()["backends"]
    assert [(each["address"], each["model"]) for each in found] == [("http://127.0.0.1:9/v1", "m")]


async def test_rows_without_a_task_are_refused_all_together(calls: httpx.AsyncClient) -> None:
    rows = [{"rollout_id": "good", "input": row(0.5)}, {"rollout_id": "bad", "input": {"question": "?"}}]
    assert (await calls.post("/api/rollouts", json=rows)).status_code == 422
    assert (await calls.get("/api/rollouts/good")).status_code == 404


async def test_events_of_others_without_log_probabilities_do_not_break_triplets(
    calls: httpx.AsyncClient, worker: Worker
) -> None:
    """As its gateway records them: a refused request, a chat answer without, one whose log-probabilities are null."""
    async with serving(worker, 1):
        await calls.post("/api/rollouts", json=[{"rollout_id": "foreign", "input": row(0.5)}])
        async with asyncio.timeout(60):
            while (await calls.get("/api/rollouts/foreign")).json()["rollout"]["status"]["state"] != "succeeded":
                await asyncio.sleep(0.05)
    choice = {"message": {"content": "x"}, "token_ids": [3, 4]}
    chat = {"content": [{"logprob": -0.5}, {"logprob": None}]}
    foreign: list[dict[str, Any]] = [
        {"response": {"error": "no"}, "http_status": 503, "status": "error"},
        {"response": {"prompt_token_ids": [1], "choices": [choice]}},
        {"response": {"choices": [{**choice, "prompt_token_ids": [1], "logprobs": chat}]}, "server": None},
        {"response": [{"choices": []}]},
        {},
    ]
    for data in foreign:
        body = {"event_type": "model_request", "data": data}
        assert (await calls.post("/api/rollouts/foreign/attempt/0/events", json=body)).status_code == 200
    answer = await calls.get("/api/rollouts/foreign/events", params={"format": "triplet"})
    assert answer.status_code == 200
    told = [each["data"] for each in answer.json() if each["event_type"] == "model_request"]
    assert [each["response_log_probs"] is None for each in told] == [False] * 3 + [True] * 5
    assert (told[5]["prompt_token_ids"], told[5]["response_token_ids"]) == ([1], [3, 4])
    assert (told[3]["status"], told[3]["http_status"]) == ("error", 503)


async def test_the_asynchronous_mode_pauses_the_run_and_resumes_it(
    manager: Any, calls: httpx.AsyncClient, worker: Worker
) -> None:
    """As its asynchronous trainer does around new weights: it waits until nothing is in flight."""
    post = manager.client.post_with_retry
    paused = (await asyncio.to_thread(post, "/proxy/pause", json={"reason": "step=1"})).json()
    assert (paused["paused"], paused["reason"]) == (True, "step=1")
    assert (await calls.get("/proxy/state")).json() == {**paused, "inflight": 0}
    await calls.post("/api/rollouts", json=[{"rollout_id": "held", "input": row(0.5)}])
    assert (await calls.get("/proxy/state")).json()["inflight"] == 0
    assert (await calls.get("/api/rollouts/held")).json()["rollout"]["status"]["state"] == "queuing"
    assert (await asyncio.to_thread(post, "/proxy/resume")).json()["paused"] is False
    async with serving(worker, 1), asyncio.timeout(60):
        while (await calls.get("/api/rollouts/held")).json()["rollout"]["status"]["state"] != "succeeded":
            await asyncio.sleep(0.05)
