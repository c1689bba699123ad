"""A trainer's way through the HTTP interface."""

import httpx
import msgspec
import pytest

from prorl_mq.schema.trajectory import Trajectory
from tests.api.service import TRAJECTORY, Worker, batch, closed

pytestmark = pytest.mark.anyio


async def test_a_batch_comes_back_as_whole_groups_with_rewards_and_tokens(
    client: httpx.AsyncClient, worker: Worker
) -> None:
    accepted = await client.post("/v1/batches", json=batch(groups=2, n=2))
    assert accepted.status_code == 202
    assert accepted.json() == {
        "run_id": "run", "batch_id": "batch", "groups": ["run:batch-0", "run:batch-1"], "jobs": 4, "repeated": False,
    }  # fmt: skip
    for reward in (0.0, 1.0, 0.0, 1.0):
        await worker.complete(reward)
    first = await closed(client, "run", limit=1)
    second = await closed(client, "run", after=first["cursor"])
    groups = [entry["group"] for page in (first, second) for entry in page["results"]]
    assert sorted(group["group_id"] for group in groups) == ["batch-0", "batch-1"]
    assert [[sample["reward"] for sample in group["samples"]] for group in groups] == [[0.0, 1.0], [0.0, 1.0]]
    tokens = await client.get("/v1/jobs/run:batch-1:0/trajectory", headers={"Accept": "application/msgpack"})
    assert msgspec.msgpack.decode(tokens.content, type=Trajectory) == TRAJECTORY
    status = (await client.get("/v1/batches/run:batch")).json()
    assert (status["groups"], status["open"], sum(status["verdicts"].values())) == (2, 0, 2)


async def test_a_job_tells_its_state_and_its_time_line(client: httpx.AsyncClient, worker: Worker) -> None:
    await client.post("/v1/batches", json=batch())
    await worker.complete()
    await closed(client, "run")
    status = (await client.get("/v1/jobs/run:batch-0:0")).json()
    assert (status["state"], status["outcome"], status["batch_id"]) == ("done", "completed", "batch")
    events = (await client.get("/v1/jobs/run:batch-0:0/events")).json()["events"]
    assert [event["event"] for event in events][-1] == "finish"


async def test_the_time_line_has_every_change_and_every_attempt(client: httpx.AsyncClient, worker: Worker) -> None:
    await client.post("/v1/batches", json=batch())
    before = (await client.get("/v1/jobs/run:batch-0:0/timeline")).json()
    assert before["status"]["job_id"] == "run:batch-0:0"
    await worker.complete()
    await closed(client, "run")
    found = (await client.get("/v1/jobs/run:batch-0:0/timeline")).json()
    assert [(each["event"], each["state"]) for each in found["changes"]] == [
        ("admit", "queued"), ("claim", "leased"), ("advance", "queued"), ("claim", "leased"), ("advance", "queued"),
        ("claim", "leased"), ("finish", "done"),
    ]  # fmt: skip
    assert [(each["stage"], each["worker"], each["ended_by"]) for each in found["attempts"]] == [
        ("init", "worker-1", "advance"), ("run", "worker-1", "advance"), ("eval", "worker-1", "finish"),
    ]  # fmt: skip
    assert found["submitted_ms"] <= found["changes"][0]["ms"] <= found["now_ms"]
    assert (await client.get("/v1/jobs/run:batch-0:7/timeline")).status_code == 404


async def test_acknowledged_results_are_gone_and_a_repeat_deletes_nothing(
    client: httpx.AsyncClient, worker: Worker
) -> None:
    await client.post("/v1/batches", json=batch())
    await worker.complete()
    page = await closed(client, "run")
    body = {"cursors": [page["cursor"]]}
    assert (await client.post("/v1/runs/run/ack", json=body)).json() == {"acked": 1}
    assert (await client.post("/v1/runs/run/ack", json=body)).json() == {"acked": 0}
    assert (await closed(client, "run", wait=0))["results"] == []
    assert (await client.get("/v1/jobs/run:batch-0:0/trajectory")).status_code == 404


async def test_the_same_batch_again_answers_200_and_another_body_409(client: httpx.AsyncClient) -> None:
    first = await client.post("/v1/batches", json=batch())
    again = await client.post("/v1/batches", json=batch())
    other = await client.post("/v1/batches", json=batch(n=2))
    assert (first.status_code, again.status_code, other.status_code) == (202, 200, 409)
    assert again.json() == first.json() | {"repeated": True}
    assert "batch" in other.json()["detail"]


async def test_a_sample_that_waits_in_the_backlog_is_cancelled_by_its_group(client: httpx.AsyncClient) -> None:
    """It is no job yet: the answer says what to cancel instead, and nothing is said to be stopped that is not."""
    await client.post("/v1/batches", json=batch())
    answer = await client.post("/v1/jobs/run:batch-0:0/cancel")
    assert answer.status_code == 409
    assert "cancel its group 'run:batch-0'" in answer.json()["detail"]
    assert (await client.post("/v1/jobs/run:batch-0:99/cancel")).status_code == 404


@pytest.mark.parametrize("path", ["groups/run:batch-0", "batches/run:batch", "runs/run"])
async def test_a_cancel_ends_what_waits_and_may_be_repeated(client: httpx.AsyncClient, path: str) -> None:
    await client.post("/v1/batches", json=batch())
    answers = [await client.post(f"/v1/{path}/cancel") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [202, 202]
    assert answers[0].json()["id"] == path.partition("/")[2]
    assert answers[0].json()["state"] == "cancelled"


async def test_a_cancelled_batch_comes_back_as_cancelled_groups(client: httpx.AsyncClient) -> None:
    await client.post("/v1/batches", json=batch(groups=3))
    await client.post("/v1/batches/run:batch/cancel")
    seen: list[str] = []
    after = "0"
    while len(seen) < 3:
        page = await closed(client, "run", after=after)
        seen += [entry["group"]["verdict"] for entry in page["results"]]
        after = page["cursor"]
    assert seen == ["cancelled"] * 3


async def test_backends_join_show_and_leave(client: httpx.AsyncClient) -> None:
    about = {"address": "http://127.0.0.1:8000/", "protocol": "completions", "model": "m"}
    assert (await client.post("/v1/pools/policy/backends", json=about)).status_code == 201
    assert (await client.post("/v1/pools/policy/backends", json=about)).json()["state"] == "known"
    [shown] = (await client.get("/v1/pools/policy/backends")).json()["backends"]
    assert (shown["address"], shown["in_flight"], shown["state"]) == ("http://127.0.0.1:8000", 0, "ready")
    query = {"address": "http://127.0.0.1:8000"}
    assert (await client.delete("/v1/pools/policy/backends", params=query)).json()["state"] == "left"
    assert (await client.delete("/v1/pools/policy/backends", params=query)).status_code == 404


async def test_a_policy_version_is_announced(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/pools/policy/policy", json={"version": 17, "mode": "drain"})
    said = {"pool": "policy", "version": 17, "mode": "drain", "weights": None, "backends": []}
    assert answer.json() == said
    assert (await client.get("/v1/pools/policy/policy")).json() == said


async def test_weights_that_the_service_is_to_load_show_what_became_of_them(client: httpx.AsyncClient) -> None:
    await client.post("/v1/pools/policy/backends", json={"address": "http://127.0.0.1:8000"})
    body = {"version": 18, "mode": "abort", "weights": "/weights/18"}
    answer = await client.post("/v1/pools/policy/policy", json=body)
    told = {"address": "http://127.0.0.1:8000", "serves": None, "served": None, "step": None, "tries": 0, "error": None}
    assert answer.json() == {"pool": "policy", **body, "backends": [told]}
    assert (await client.post("/v1/pools/policy/policy", json={"version": -1})).status_code == 422
    assert (await client.post("/v1/pools/policy/policy", json={"version": 1, "weights": ""})).status_code == 422
