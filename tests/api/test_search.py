"""Full-text search over HTTP: a page after the other, a tenant's own alone, and what cannot be read is counted."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from prorl_mq.schema.trajectory import Segment, Trajectory
from prorl_mq.store.server.connection import RedisSettings, ask
from tests.api.service import Worker, announce_source, api, batch, closed
from tests.api.test_tenants import TOKENS, bearer

pytestmark = pytest.mark.anyio
SAID = Trajectory(
    segments=[Segment(prompt_ids=[1], response_ids=[], loss_mask=[], logprobs=[], prompt_text="Find the needle.")],
    turns=[],
    stop_reason="answer",
)


@pytest.fixture
async def ann(settings: RedisSettings) -> AsyncIterator[httpx.AsyncClient]:
    """Three groups of hers that have closed; the trajectory of the second is gone."""
    await announce_source(settings)
    async with api(settings, tokens=TOKENS) as client, Worker(settings) as worker:
        client.headers.update(bearer("ann"))
        assert (await client.post("/v1/batches", json=batch(groups=3))).status_code == 202
        for _ in range(3):
            await worker.finish(await worker.in_run(), trajectory=SAID)
        after, found = "0", dict[str, Any]()
        while len(found) < 3:
            page = await closed(client, "run", after=after)
            after = page["cursor"]
            found |= {each["group"]["group_id"]: each["group"]["samples"][0] for each in page["results"]}
        assert await ask(worker.redis, "DEL", found["batch-1"]["trajectory"]) == 1
        yield client


async def search(client: httpx.AsyncClient, **query: Any) -> dict[str, Any]:
    answer = await client.get("/v1/runs/run/search", params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = msgspec.json.decode(answer.content)
    return found


async def test_each_page_continues_where_the_one_before_ended(ann: httpx.AsyncClient) -> None:
    whole = await search(ann, q="needle FIND")
    assert {hit["group_id"] for hit in whole["hits"]} == {"batch-0", "batch-2"}
    assert (whole["searched"], whole["unread"], whole["next"]) == (3, 1, None)
    pages, after = [], "0"
    while after is not None:
        pages.append(await search(ann, q="needle", limit=1, after=after))
        after = pages[-1]["next"]
    assert [hit for page in pages for hit in page["hits"]] == whole["hits"]
    assert (sum(page["searched"] for page in pages), sum(page["unread"] for page in pages)) == (3, 1)


async def test_a_search_finds_nothing_of_another_tenant(ann: httpx.AsyncClient) -> None:
    for state in ("closed", "archived"):
        answer = await ann.get("/v1/runs/run/search", params={"q": "needle", "state": state}, headers=bearer("bob"))
        assert answer.status_code == 404 or not answer.json()["hits"]
    assert "run" not in (await ann.get("/v1/advice", headers=bearer("bob"))).json()["says"].split()


@pytest.mark.parametrize("q", ["", " ", "a" * 501])
async def test_a_query_that_cannot_be_is_refused(ann: httpx.AsyncClient, q: str) -> None:
    assert (await ann.get("/v1/runs/run/search", params={"q": q})).status_code == 422
