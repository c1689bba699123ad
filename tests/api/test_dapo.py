"""DAPO batches over HTTP: taken, refused by name, collected with their report."""

import asyncio
from typing import Any

import httpx
import msgspec
import pytest

from api.routes import results
from api.service import Service
from prorl_mq.schema.ids import run_ref
from prorl_mq.schema.messages import BatchStatus
from tests.api.service import DEFAULT_TENANT, Worker, batch, closed

pytestmark = pytest.mark.anyio


async def test_a_batch_ends_with_its_report_by_page_by_event_and_by_status(
    client: httpx.AsyncClient, worker: Worker
) -> None:
    accepted = await client.post("/v1/batches", json=batch(groups=3, n=2, dapo={"target_groups": 1}))
    assert accepted.status_code == 202, accepted.text
    for reward in (0.0, 1.0):
        await worker.complete(reward)
    after, found = "0", list[dict[str, Any]]()
    async with asyncio.timeout(60):
        while not any("batch" in entry for entry in found):
            page = await closed(client, "run", after=after)
            after, found = page["cursor"], found + page["results"]
    report = found[-1]["batch"]
    assert (report["reason"], report["accepted"]["count"], report["surplus"]) == ("target", 1, "carry")
    status = msgspec.json.decode((await client.get("/v1/batches/run:batch")).content, type=BatchStatus)
    assert status.dapo is not None
    assert (status.open, status.dapo.phase, status.dapo.report_cursor) == (0, "closed", found[-1]["cursor"])
    events = await _events(client, len(found))
    assert events[-1] == "event: batch"
    body = {"cursors": [entry["cursor"] for entry in found]}
    assert (await client.post("/v1/runs/run/ack", json=body)).json() == {"acked": len(found)}
    assert (await client.get("/v1/batches/run:batch")).json()["dapo"]["report"] == report


async def _events(client: httpx.AsyncClient, count: int) -> list[str]:
    """The first events as the route writes them: the client of these tests waits for whole answers."""
    service: Service = client._transport.app.state.service  # type: ignore[attr-defined]
    lines: list[str] = []
    gone = asyncio.get_running_loop().create_future()
    stream = results._events(service, run_ref(DEFAULT_TENANT, "run"), "0", gone)
    async for chunk in stream:
        lines += [line for line in chunk.decode().splitlines() if line.startswith("event: ")]
        if len(lines) == count:
            await stream.aclose()  # type: ignore[attr-defined]
            break
    return lines


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"dapo": {"target_groups": 0}}, "$.dapo.target_groups"),
        ({"dapo": {"target_group": 4}}, "did you mean 'target_groups'?"),
        ({"dapo": {"target_groups": 1, "filter": {"kind": "spread", "abov": 0}}}, "did you mean 'above'?"),
        ({"dapo": {"target_groups": 1, "filter": {"kind": "spraed"}}}, "spraed"),
        (
            {"dapo": {"target_groups": 1, "filter": {"kind": "predicate", "name": "mine"}}},
            "no filter 'mine' is installed",
        ),
        ({"dapo": {"target_groups": 1, "filter": {"kind": "accuracy", "least": 0.9, "most": 0.1}}}, "keeps nothing"),
        ({"dapo": {"target_groups": 1, "surplus": "keep"}}, "$.dapo.surplus"),
        (
            {"dapo": {"target_groups": 1, "early_drop": 0.1}},
            "batch 'batch': early_drop=0.1 was removed",
        ),
        ({"dapo": {"target_groups": 1, "early_drop": True}}, "batch 'batch': early_drop=True was removed"),
        ({"dapo": {"target_groups": 1}, "prompts": True}, "submit two batches"),
        ({"groups": []}, "has no groups"),
        ({"groups": [], "prompts": True}, "has no groups"),
    ],
)
async def test_what_cannot_be_carried_out_is_refused_by_name(
    client: httpx.AsyncClient, wrong: dict[str, Any], says: str
) -> None:
    answer = await client.post("/v1/batches", json={**batch(n=2), **wrong})
    assert answer.status_code == 422
    assert says in answer.text


@pytest.mark.parametrize("few", [1, 3])
async def test_a_group_that_would_close_with_other_than_all_its_samples_is_refused(
    client: httpx.AsyncClient, few: int
) -> None:
    asked = batch(groups=2, n=2)
    asked["groups"][1] |= {"group_id": "mine", "accept": few}
    answer = await client.post("/v1/batches", json=asked)
    says = (
        f"group 'mine': accept={few} of n=2 was removed, because it favoured short samples; leave it out, and to wait "
        "for no slow group submit more groups than dapo.target_groups"
    )
    assert (answer.status_code, says in answer.text) == (422, True), answer.text


@pytest.mark.parametrize("fields", [{"accept": "all"}, {"accept": 2}, {"accept": None}])
async def test_a_group_of_a_trainer_of_0_1_0_that_needs_all_its_samples_is_the_same_as_without_the_field(
    client: httpx.AsyncClient, fields: dict[str, Any]
) -> None:
    asked = batch(n=2, dapo={"target_groups": 1})
    assert (await client.post("/v1/batches", json=asked)).status_code == 202
    asked["groups"][0] |= fields
    for early_drop in (None, False):
        asked["dapo"]["early_drop"] = early_drop
        answer = await client.post("/v1/batches", json=asked)
        assert (answer.status_code, answer.json()["repeated"]) == (200, True), answer.text
