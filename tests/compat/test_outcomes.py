"""Each of our outcomes in the contract's words, and what its trainer's client makes of it."""

import asyncio
from typing import Any

import httpx
import pytest

from prorl_mq.schema.messages import ErrorInfo, Outcome
from prorl_mq.schema.trajectory import Segment, Trajectory
from tests.api.service import Worker
from tests.compat.calls import answered, call, start
from tests.converters.made import compacted, truncated, with_tools

pytestmark = pytest.mark.anyio
LOST = ErrorInfo(type="SandboxGone", message="it is gone", stage="run", traceback="Traceback ...")
LATE = ErrorInfo(type="StageTimeout", message="eval took longer", stage="eval")
WINDOW = "LLMContextWindowExceedError: Conversation history longer than LLM context window limit"


@pytest.mark.parametrize(
    ("ending", "told"),
    [
        ({"reward": 0.5}, (True, False, None, None, False)),
        ({"reward": 0.995}, (True, True, None, None, False)),
        (
            {"outcome": Outcome.AGENT_ERROR, "reward": 0.0, "note": "four refused"},
            (False, False, "AgentToolCallError: four refused", None, False),
        ),
        (
            {"outcome": Outcome.TRUNCATED, "reward": 1.0, "truncated_by": "turns", "turns": 4},
            (False, True, "RuntimeError: Agent reached maximum iteration: 4", None, True),
        ),
        (
            {"outcome": Outcome.TRUNCATED, "reward": 0.0, "truncated_by": "context"},
            (False, False, WINDOW, None, True),
        ),
        (
            {"outcome": Outcome.TRUNCATED, "reward": 0.0, "truncated_by": "time"},
            (False, False, "Error in run agent: Operation timed out", "timeout", True),
        ),
        (
            {"outcome": Outcome.EXPIRED, "reward": None},
            (False, False, "Error in eval: Operation timed out", "timeout", True),
        ),
    ],
)
async def test_an_outcome_in_the_contracts_words(
    client: httpx.AsyncClient, worker: Worker, ending: dict[str, Any], told: Any
) -> None:
    await start(client)
    found = await answered(client, worker, call(), trajectory=with_tools().trajectory, **ending)
    assert tuple(found[name] for name in ("success", "resolved", "error", "critical_error", "filter")) == told
    assert found["timing"]["timeout_triggered"] == (told[3] == "timeout")
    assert found["end_properly"] == (ending.get("outcome") is not Outcome.AGENT_ERROR)
    assert (found["reward"], len(found["messages"])) == (ending["reward"], 6)


@pytest.mark.parametrize(
    ("error", "outcome", "told"),
    [
        (LOST, Outcome.INFRA_ERROR, ("Error in run agent: SandboxGone: it is gone", "run")),
        (LATE, Outcome.STAGE_TIMEOUT, ("Error in eval: Operation timed out", "timeout")),
    ],
)
async def test_a_failure_of_ours_is_no_reward_and_sends_what_the_last_try_said(
    client: httpx.AsyncClient, worker: Worker, error: ErrorInfo, outcome: Outcome, told: tuple[str, str]
) -> None:
    """Empty messages would make the trainer ask twice more for what our own tries have failed at."""
    await start(client)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(client.post("/process", json=call()))
        for _ in range(2):  # the sample and its refill
            about = {"outcome": outcome, "reward": None, "error": error}
            await worker.complete(trajectory=with_tools().trajectory, **about)
        found = (await waiting).json()
    assert (found["error"], found["critical_error"]) == told
    assert (found["success"], found["resolved"], found["filter"], found["reward"]) == (False, False, True, None)
    assert len(found["messages"]) == 6
    assert ("traceback" in found) == (outcome is Outcome.INFRA_ERROR)


def samples(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """What verl's client for these routes makes of an answer, in token mode: it reads no other key."""
    while messages and messages[-1]["role"] != "assistant":
        messages.pop()
    first = next(place for place, each in enumerate(messages) if each["role"] == "assistant")
    assert first > 0, "read as: no assistant was found"
    response = messages[first:]
    masks = [[int(each["role"] == "assistant")] * len(each["token_ids"]) for each in response]
    told = [each["logprobs"] or [0.0] * len(each["token_ids"]) for each in response]
    return {
        "prompt": [token for each in messages[:first] for token in each["token_ids"]],
        "response": [token for each in response for token in each["token_ids"]],
        "mask": [value for mask in masks for value in mask],
        "logprobs": [value for each in told for value in each],
    }


@pytest.mark.parametrize("case", [with_tools, truncated, compacted])
async def test_verls_client_gets_the_tokens_as_they_were_sampled(
    client: httpx.AsyncClient, worker: Worker, case: Any
) -> None:
    trajectory: Trajectory = case().trajectory
    await start(client)
    found = await answered(client, worker, call(), trajectory=trajectory)
    segment: Segment = [each for each in trajectory.segments if each.spans][-1]
    last = max(place for place, mask in enumerate(segment.loss_mask) if mask) + 1
    assert samples(found["messages"]) == {
        "prompt": list(segment.prompt_ids),
        "response": list(segment.response_ids[:last]),
        "mask": list(segment.loss_mask[:last]),
        "logprobs": [each or 0.0 for each in segment.logprobs[:last]],
    }
    final = found["messages"][-1]
    everything = [token for each in found["messages"] for token in each["token_ids"]]
    assert everything == final["input_ids"] + final["token_ids"]


async def test_text_mode_has_no_token_fields_and_input_ids_can_be_left_out(
    client: httpx.AsyncClient, worker: Worker
) -> None:
    await start(client)
    trajectory = with_tools().trajectory
    text = await answered(client, worker, call("a", token_level_generation=False), trajectory=trajectory)
    assert all({"token_ids", "input_ids", "logprobs"}.isdisjoint(each) for each in text["messages"])
    lean = await answered(client, worker, call("b", return_input_ids=False), trajectory=trajectory)
    assert all("token_ids" in each for each in lean["messages"])
    assert not any(each.get("input_ids") for each in lean["messages"])
