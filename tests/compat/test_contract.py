"""The seven routes answer with the keys, texts and codes of ProRL Agent's first release."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.api.service import Worker
from tests.compat.calls import BACKEND, answered, call, counted, start
from tests.converters.made import with_tools

pytestmark = pytest.mark.anyio
NOT_RUNNING = (503, {"detail": "Server is not running. Please start the server first."})
KEYS = {
    "messages", "tools", "success", "error", "finish", "end_properly", "resolved", "critical_error", "instance_id",
    "trajectory_id", "filter", "timing", "git_patch",
}  # fmt: skip
OURS = {"reward", "policy_version", "outcome", "attempt", "job_id"}


def said(answer: httpx.Response) -> tuple[int, Any]:
    return answer.status_code, answer.json()


async def test_a_server_starts_once_and_stops_once(client: httpx.AsyncClient) -> None:
    assert said(await client.post("/stop")) == NOT_RUNNING
    assert said(await client.post("/start")) == (200, {"status": "Server started successfully"})
    assert said(await client.post("/start")) == (400, {"detail": "Server is already running"})
    assert said(await client.post("/stop")) == (200, {"status": "Server stopped successfully"})
    assert said(await client.post("/stop")) == NOT_RUNNING


async def test_nothing_but_registration_works_before_the_start(client: httpx.AsyncClient) -> None:
    assert said(await client.get("/status")) == NOT_RUNNING
    assert said(await client.post("/cancel", json={"job_id": "x"})) == NOT_RUNNING
    assert said(await client.post("/process", json=call())) == NOT_RUNNING


async def test_addresses_are_buffered_before_the_start_and_added_after_it(client: httpx.AsyncClient) -> None:
    body = {"address": f"{BACKEND}/v1"}
    assert said(await client.post("/clear_llm_server")) == (200, {"status": "Cleared buffered LLM server addresses"})
    buffered = (200, {"status": f"Buffered LLM server address: {BACKEND}/v1"})
    assert said(await client.post("/add_llm_server", json=body)) == buffered
    assert said(await client.post("/add_llm_server", json=body)) == buffered
    await client.post("/start")
    added = (200, {"status": f"Added LLM server address: {BACKEND}/v1"})
    assert said(await client.post("/add_llm_server", json=body)) == added
    assert said(await client.post("/clear_llm_server")) == (200, {"status": "Cleared all LLM server addresses"})
    code, answer = said(await client.post("/add_llm_server", json={"address": "gpu7"}))
    assert (code, answer["detail"][:26]) == (500, "Failed to add LLM server: ")


async def test_no_backend_and_an_unknown_data_source_are_500(client: httpx.AsyncClient) -> None:
    await client.post("/start")
    none = (500, {"detail": "Failed to process job: ValueError: No LLM server addresses added"})
    assert said(await client.post("/process", json=call())) == none
    await client.post("/add_llm_server", json={"address": BACKEND})
    body = call()
    body["instance"]["data_source"] = "elsewhere"
    unknown = "Failed to process job: FunctionNotRegisteredError: Dataset type elsewhere is not registered"
    assert said(await client.post("/process", json=body)) == (500, {"detail": unknown})
    await client.post("/clear_llm_server")
    assert said(await client.post("/process", json=call())) == none


@pytest.mark.parametrize(
    ("route", "body", "faults"),
    [
        ("process", {"instance": {}}, [("missing", ["body", "sampling_params"])]),
        ("process", {"instance": [], "sampling_params": {}}, [("dict_type", ["body", "instance"])]),
        ("process", {**call(), "job_id": 7}, [("string_type", ["body", "job_id"])]),
        ("process", [], [("model_attributes_type", ["body"])]),
        ("cancel", {}, [("missing", ["body", "job_id"])]),
        ("add_llm_server", {"address": None}, [("string_type", ["body", "address"])]),
    ],
)
async def test_a_missing_or_wrong_field_is_422(client: httpx.AsyncClient, route: str, body: Any, faults: Any) -> None:
    await client.post("/start")
    answer = await client.post(f"/{route}", json=body)
    assert answer.status_code == 422
    assert [(each["type"], each["loc"]) for each in answer.json()["detail"]] == faults
    assert {"msg", "input"} <= set(answer.json()["detail"][0])


async def test_what_is_no_json_is_422(client: httpx.AsyncClient) -> None:
    answer = await client.post("/process", content=b"{")
    assert (answer.status_code, answer.json()["detail"][0]["type"]) == (422, "json_invalid")
    answer = await client.post("/process", content=b'{"instance": {"seed": NaN}')
    assert (answer.status_code, answer.json()["detail"][0]["type"]) == (422, "json_invalid")
    assert (await client.get("/process")).json() == {"detail": "Method Not Allowed"}
    assert (await client.get("/else")).json() == {"detail": "Not Found"}


async def test_columns_that_tables_leave_empty_are_taken(client: httpx.AsyncClient) -> None:
    body = b'{"instance": {"seed": NaN}, "sampling_params": {}}'
    assert said(await client.post("/process", content=body)) == NOT_RUNNING


async def test_status_counts_the_jobs_of_each_stage(client: httpx.AsyncClient, worker: Worker) -> None:
    await start(client)
    async with asyncio.timeout(100), asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(client.post("/process", json=call(f"j{n}", n))) for n in range(2)]
        held = await worker.in_run()
        counts = {"pending_jobs": 2, "jobs": 2, "total": 2, "init": 1, "run": 1, "eval": 0, "init_queue": 1}
        more = {"run_queue": 0, "eval_queue": 0, "active_init": 0, "active_run": 1, "active_eval": 0}
        assert await counted(client, jobs=2, run=1) == {"status": "running", "running": True, **counts, **more}
        stopping = tasks.create_task(client.post("/stop"))
        await worker.stop(held)
    stopped = (500, {"detail": "Failed to process job: Server is stopping; job cancelled"})
    assert [said(each.result()) for each in waiting] == [stopped, stopped]
    assert stopping.result().status_code == 200


async def test_a_completed_job_has_every_key(client: httpx.AsyncClient, worker: Worker) -> None:
    await start(client)
    seconds = {"init": 1.0, "run": 2.5, "eval": 0.5}
    ending = {"trajectory": with_tools().trajectory, "seconds": seconds, "stop_reason": "finish"}
    found = await answered(client, worker, call(), reward=1.0, **ending)
    assert set(found) == KEYS | OURS
    timing = found["timing"]
    assert timing.pop("others_time") >= 0.0
    assert timing == {
        "init_time": 1.0, "run_time": 2.5, "eval_time": 0.5, "counted_elapsed": 4.0, "timeout_triggered": False,
    }  # fmt: skip
    told = {name: found[name] for name in KEYS | OURS if name not in {"messages", "timing", "tools", "attempt"}}
    assert told == {
        "success": True, "error": None, "finish": True, "end_properly": True, "resolved": True, "critical_error": None,
        "instance_id": "i-1", "trajectory_id": 0, "filter": False, "git_patch": None, "reward": 1.0,
        "policy_version": [7, 8], "outcome": "completed", "job_id": "job",
    }  # fmt: skip


async def test_every_sampling_parameter_of_the_contract_is_taken(client: httpx.AsyncClient, worker: Worker) -> None:
    await start(client)
    given = {
        "model": "hosted_vllm/Org/Model", "api_key": "dummy_key", "top_p": 0.95, "top_k": 5, "seed": 1,
        "max_output_tokens": 64, "max_model_len": 512, "custom_tokenizer": "Qwen/Qwen3-8B", "native_tool_calling": True,
        "modify_params": False, "log_completions": False, "ensure_thinking_end_properly": True,
        "strict_loop_detector": False, "is_reasoning_task": True, "enable_vision": False, "enable_a11y_tree": False,
        "enable_thinking": True, "timeout": 60, "num_retries": 2, "never_heard_of": [1], "max_tokens": None,
    }  # fmt: skip
    found = await answered(client, worker, call(**given))
    assert found["success"] is True
    wrong = await client.post("/process", json=call("other", temperature="hot"))
    assert (wrong.status_code, wrong.json()["detail"][:40]) == (500, "Failed to process job: ValidationError: ")
