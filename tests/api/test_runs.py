"""Runs over HTTP: weights and quotas are set, refused and shown, each tenant's own."""

import hashlib
from typing import Any

import httpx
import pytest

from prorl_mq.store.server.connection import RedisSettings
from tests.api.service import Worker, announce_source, api, batch, closed

pytestmark = pytest.mark.anyio
DEFAULTS = {
    "run_id": "run", "settings": {}, "backlog": 0, "backlog_eval": 0, "in_flight": 0, "unacked_groups": 0,
    "unacked_bytes": 0, "why": "", "paused_until_ms": None,
}  # fmt: skip


async def test_a_run_may_be_set_up_before_its_first_batch_and_put_replaces_all(client: httpx.AsyncClient) -> None:
    first = await client.put("/v1/runs/run", json={"weight": 2.5, "max_jobs": 64})
    assert first.json() == DEFAULTS | {"settings": {"weight": 2.5, "max_jobs": 64}}
    second = await client.put("/v1/runs/run", json={"eval_share": 0.5})
    assert second.json() == DEFAULTS | {"settings": {"eval_share": 0.5}}
    assert (await client.get("/v1/runs/run")).json() == second.json()
    assert (await client.get("/v1/runs")).json() == {"runs": [second.json()]}
    assert (await client.get("/v1/runs/run/results")).json()["results"] == []


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"weight": 0}, "weight"),
        ({"weight": -1}, "weight"),
        ({"weight": 1e9}, "weight"),
        ({"weight": "2"}, "weight"),
        ({"max_jobs": 0}, "max_jobs"),
        ({"max_unacked_groups": 0}, "max_unacked_groups"),
        ({"max_unacked_bytes": 0}, "max_unacked_bytes"),
        ({"eval_share": 1}, "eval_share"),
        ({"wieght": 1}, "wieght"),
    ],
)
async def test_a_bad_value_is_refused_by_name_and_nothing_is_stored(
    client: httpx.AsyncClient, body: dict[str, Any], field: str
) -> None:
    answer = await client.put("/v1/runs/run", json=body)
    assert (answer.status_code, answer.json()["field"]) == (422, f"$.{field}")
    assert (await client.get("/v1/runs")).json() == {"runs": []}
    assert (await client.get("/v1/runs/run")).status_code == 404


async def test_a_run_shows_what_it_holds_and_its_records_say_what_they_are_for(
    client: httpx.AsyncClient, worker: Worker
) -> None:
    await client.put("/v1/runs/run", json={"max_unacked_groups": 1})
    await client.post("/v1/batches", json=batch(groups=2, purpose="eval", priority=3))
    await worker.complete()
    page = await closed(client, "run")
    assert page["results"][0]["group"]["purpose"] == "eval"
    shown = (await client.get("/v1/runs/run")).json()
    assert shown["unacked_bytes"] > 0
    assert shown | {"unacked_bytes": 0} == DEFAULTS | {
        "settings": {"max_unacked_groups": 1}, "backlog": 1, "backlog_eval": 1, "unacked_groups": 1,
        "why": "1 of at most 1 groups run or are not acknowledged: acknowledge results, or raise max_unacked_groups",
        "paused_until_ms": None,
    }  # fmt: skip
    job = (await client.get("/v1/jobs/run:batch-1:0")).json()
    assert job["state"] == "backlog"
    assert "max_unacked_groups" in job["why"]
    await client.post("/v1/runs/run/ack", json={"cursors": [page["cursor"]]})
    await worker.complete()


async def test_the_same_batch_with_another_purpose_or_priority_is_another_body(client: httpx.AsyncClient) -> None:
    await client.post("/v1/batches", json=batch())
    for more in ({"purpose": "eval"}, {"priority": 1}):
        assert (await client.post("/v1/batches", json=batch(**more))).status_code == 409
    for more in ({"purpose": "test"}, {"priority": 10}, {"priority": 0.5}):
        assert (await client.post("/v1/batches", json=batch(name="b2", **more))).status_code == 422


async def test_a_tenant_sees_and_sets_its_own_runs_alone(settings: RedisSettings) -> None:
    await announce_source(settings)
    tokens = {name: hashlib.sha256(f"token-of-{name}".encode()).digest() for name in ("ann", "bob")}
    ann, bob = ({"Authorization": f"Bearer token-of-{name}"} for name in tokens)
    async with api(settings, tokens=tokens) as client:
        await client.put("/v1/runs/run", json={"weight": 2}, headers=ann)
        assert (await client.get("/v1/runs", headers=bob)).json() == {"runs": []}
        assert (await client.get("/v1/runs/run", headers=bob)).status_code == 404
        await client.put("/v1/runs/run", json={"weight": 3}, headers=bob)
        assert (await client.get("/v1/runs/run", headers=ann)).json()["settings"] == {"weight": 2.0}
