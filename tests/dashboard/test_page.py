"""rq-dashboard's pages as a browser gets them, and every button on them."""

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from prorl_mq.dashboard.page import create_app
from prorl_mq.dashboard.projector import Projector
from prorl_mq.dashboard.rq_format import job_key, record_id
from prorl_mq.dashboard.settings import DashboardSettings
from prorl_mq.schema.items import Advance
from prorl_mq.schema.lifecycle import State
from prorl_mq.schema.messages import ErrorInfo, Outcome, Stage
from prorl_mq.store.server.connection import RedisSettings, connect
from tests.dashboard.conftest import Reader
from tests.dashboard.test_records import shown
from tests.support.queue import Queue

pytestmark = pytest.mark.anyio
TOKEN = "correct-horse"
BASE = "http://127.0.0.1:9181"
EVIL = "<img src=x onerror=alert(1)>"
PAGES = ["/", "/0/view/workers", "/0/view/jobs", "/0/view/jobs/run/failed/8/asc/1"]


@pytest.fixture
async def page(queue: Queue, settings: RedisSettings, mirrored: RedisSettings) -> AsyncIterator[httpx.AsyncClient]:
    """The page, without the token."""
    redis = connect(mirrored)
    about = DashboardSettings(role="serve", redis=settings, mirror=mirrored, token=TOKEN)
    transport = httpx.ASGITransport(create_app(about, queue.store, redis))
    async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
        yield client
    await redis.aclose()


@pytest.fixture
async def browser(page: httpx.AsyncClient) -> httpx.AsyncClient:
    """Has opened the address with the token."""
    answer = await page.get("/", params={"token": TOKEN})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    return page


async def jobs(browser: httpx.AsyncClient, stage: Stage, registry: str) -> list[dict[str, Any]]:
    answer = await browser.get(f"/0/data/jobs/{stage}/{registry}/100/asc/1.json")
    assert answer.status_code == 200
    found: list[dict[str, Any]] = answer.json()["jobs"]
    return found


async def state(queue: Queue, ref: Any) -> str:
    return (await queue.snapshot(ref)).state


# ---- the gate


@pytest.mark.parametrize("path", [*PAGES, "/0/data/queues.json", "/static/css/main.css", "/prorl/notices.js"])
async def test_nothing_is_shown_without_the_token(page: httpx.AsyncClient, path: str) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Cookie": "prorl_dashboard=wrong"}):
        assert (await page.get(path, headers=headers)).status_code == 401
    assert (await page.get(path, params={"token": "wrong"})).status_code == 401
    assert (await page.get(path, headers={"Authorization": f"Bearer {TOKEN}"})).status_code == 200


async def test_the_token_leaves_the_address_for_a_cookie_that_scripts_cannot_read(page: httpx.AsyncClient) -> None:
    answer = await page.get("/0/view/workers", params={"token": TOKEN, "x": "1"})
    assert answer.headers["location"] == "/0/view/workers?x=1"
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie


async def test_a_foreign_page_presses_no_button(browser: httpx.AsyncClient, queue: Queue) -> None:
    """Another port of the same host is the same site to a browser, which sends the cookie."""
    [ref] = await queue.admitted()
    delete = f"/job/{record_id(ref, Stage.INIT)}/delete"
    assert (await browser.post(delete, headers={"Origin": "http://127.0.0.1:1"})).status_code == 403
    assert await state(queue, ref) == State.QUEUED
    assert (await browser.post(delete, headers={"Origin": BASE})).status_code == 200


# ---- what it shows


async def test_every_page_and_what_it_loads_are_served(
    browser: httpx.AsyncClient, queue: Queue, projector: Projector
) -> None:
    held = await queue.hold(Stage.RUN)
    await shown(projector)
    job = record_id(held.ref, Stage.RUN)
    for path in [*PAGES, f"/0/view/job/{job}"]:
        answer = await browser.get(path)
        assert answer.status_code == 200, path
        for asset in [part.split('"')[0] for part in answer.text.split('src="')[1:]]:
            assert (await browser.get(asset)).status_code == 200, asset
    counts = {each["name"]: each for each in (await browser.get("/0/data/queues.json")).json()["queues"]}
    assert list(counts) == ["eval", "init", "run"]
    assert (counts["init"]["finished_job_registry_count"], counts["run"]["started_job_registry_count"]) == (1, 1)
    [row] = await jobs(browser, Stage.RUN, "started")
    assert (row["id"], row["description"]) == (job, "task (sums), sample 0, run r of acme")
    about = (await browser.get(f"/0/data/job/{job}.json")).json()
    assert (about["status"], about["origin"], about["metadata"]) == ("started", "run", "{}")


async def test_markup_in_a_task_id_or_an_error_is_shown_as_text(
    browser: httpx.AsyncClient, queue: Queue, projector: Projector
) -> None:
    """rq-dashboard puts descriptions, errors and results into its pages as they are."""
    held = await queue.hold(Stage.EVAL, task_id=EVIL)
    error = ErrorInfo(type="ValueError", message=EVIL, stage="eval", traceback=f"ValueError: {EVIL}")
    await queue.finish(held, Outcome.INFRA_ERROR, error=error)
    await shown(projector)
    about = (await browser.get(f"/0/data/job/{record_id(held.ref, Stage.EVAL)}.json")).text
    assert about.count("img src=x onerror") == 2
    assert "<" not in about
    assert "<img" not in (await browser.get("/0/data/jobs/eval/failed/8/asc/1.json")).text


async def test_no_script_runs_but_the_pages_own(browser: httpx.AsyncClient) -> None:
    """Even where markup came in, its handlers do not run: they have no nonce."""
    answer = await browser.get("/")
    policy = answer.headers["content-security-policy"]
    nonce = policy.partition("'nonce-")[2].partition("'")[0]
    assert f'<script nonce="{nonce}"' in answer.text
    assert "unsafe-inline" not in policy.partition("script-src")[2].partition(";")[0]
    assert nonce not in (await browser.get("/")).headers["content-security-policy"]


async def test_a_pickle_in_the_mirror_is_never_loaded(
    browser: httpx.AsyncClient, queue: Queue, projector: Projector, reader: Reader, tmp_path: Path
) -> None:
    """Whoever can write that database could else run code in this process."""
    held = await queue.hold(Stage.RUN)
    await shown(projector)
    touched = tmp_path / "touched"
    bomb = f"cbuiltins\nopen\n(V{touched}\nVw\ntR.".encode()
    key = job_key(record_id(held.ref, Stage.RUN))
    reader.redis.hset(key, mapping={"data": bomb, "meta": bomb, "result": bomb})
    results = key.replace("rq:job:", "rq:results:")
    reader.redis.xadd(results, {"type": "1", "return_value": base64.b64encode(bomb)})
    for path in (f"/0/view/job/{record_id(held.ref, Stage.RUN)}", "/0/data/workers.json", "/0/view/workers"):
        await browser.get(path)
    job = await browser.get(f"/0/data/job/{record_id(held.ref, Stage.RUN)}.json")
    assert job.status_code == 500  # it was read as JSON, which it is not
    assert not touched.exists()


# ---- buttons


async def test_delete_cancels_a_job_that_waits(browser: httpx.AsyncClient, queue: Queue, projector: Projector) -> None:
    [ref] = await queue.admitted()
    cursor = await shown(projector)
    answer = await browser.post(f"/job/{record_id(ref, Stage.INIT)}/delete")
    assert (answer.status_code, answer.json()["status"]) == (200, "OK")
    assert answer.json()["message"].startswith("r:g:0: cancelled")
    assert await state(queue, ref) == State.DONE
    await shown(projector, cursor)
    assert [row["id"] for row in await jobs(browser, Stage.INIT, "canceled")] == [record_id(ref, Stage.INIT)]


async def test_delete_of_a_running_job_tells_its_worker_to_stop(browser: httpx.AsyncClient, queue: Queue) -> None:
    held = await queue.hold(Stage.RUN)
    answer = await browser.post(f"/job/{record_id(held.ref, Stage.RUN)}/delete")
    assert answer.json()["message"].startswith("r:g:0: cancelling")
    assert await state(queue, held.ref) == State.STOPPING


async def test_delete_of_a_stage_that_is_over_leaves_the_job_alone(browser: httpx.AsyncClient, queue: Queue) -> None:
    """The record of INIT is history; the job is in RUN."""
    held = await queue.hold(Stage.RUN)
    answer = await browser.post(f"/job/{record_id(held.ref, Stage.INIT)}/delete")
    assert (answer.status_code, answer.json()["message"]) == (
        409,
        "r:g:0 has left init and is in run: delete it there.",
    )
    assert await state(queue, held.ref) == State.LEASED


async def test_delete_of_an_ended_job_is_refused(browser: httpx.AsyncClient, queue: Queue) -> None:
    held = await queue.hold(Stage.EVAL)
    await queue.finish(held)
    path = f"/job/{record_id(held.ref, Stage.EVAL)}/delete"
    answer = await browser.post(path)
    assert answer.status_code == 409
    assert "is not cancelled: it has ended as completed" in answer.json()["message"]
    await queue.settle()
    assert (await browser.post(path)).status_code == 409
    await queue.ack_all()
    gone = await browser.post(path)
    assert (gone.status_code, "there is no job" in gone.json()["message"]) == (409, True)


async def test_empty_cancels_what_waits_and_nothing_else(
    browser: httpx.AsyncClient, queue: Queue, projector: Projector
) -> None:
    """Also not what was claimed since the mirror was last written."""
    refs = await queue.admitted(n=4)
    cursor = await shown(projector)
    [held] = await queue.take(Stage.INIT, count=1)
    answer = await browser.post("/queue/init/queued/empty")
    assert answer.json()["message"] == "3 jobs that waited for init were cancelled."
    assert await state(queue, held.ref) == State.LEASED
    assert [await state(queue, ref) for ref in refs if ref != held.ref] == [State.DONE] * 3
    await shown(projector, cursor)
    assert await jobs(browser, Stage.INIT, "queued") == []
    assert len(await jobs(browser, Stage.INIT, "canceled")) == 3
    assert await queue.store.advance([Advance(held, None, b"")]) == ["advanced"]


@pytest.mark.parametrize(
    "path",
    [
        "/job/RECORD/requeue", "/requeue/run", "/queue/run/failed/empty", "/queue/run/started/empty",
        "/queue/run/finished/empty", "/queue/walk/queued/empty", "/job/nobody/delete",
    ],
)  # fmt: skip
async def test_other_buttons_are_refused_with_a_reason_and_change_nothing(
    browser: httpx.AsyncClient, queue: Queue, projector: Projector, reader: Reader, path: str
) -> None:
    held = await queue.hold(Stage.RUN)
    await queue.fail(held)
    await shown(projector)
    before, job = reader.everything(), await queue.snapshot(held.ref)
    answer = await browser.post(path.replace("RECORD", record_id(held.ref, Stage.RUN)))
    assert (answer.status_code, answer.json()["status"]) == (409, "REFUSED")
    assert len(answer.json()["message"]) > 20
    assert (reader.everything(), await queue.snapshot(held.ref)) == (before, job)


async def test_compact_has_nothing_to_do(
    browser: httpx.AsyncClient, queue: Queue, projector: Projector, reader: Reader
) -> None:
    await queue.admitted()
    await shown(projector)
    before = reader.everything()
    assert (await browser.post("/queue/init/compact")).status_code == 200
    assert reader.everything() == before


@pytest.mark.parametrize("path", ["/requeue/run", "/job/x/delete", "/queue/run/queued/empty"])
async def test_a_link_presses_no_button(browser: httpx.AsyncClient, path: str) -> None:
    """rq-dashboard would requeue by GET."""
    assert (await browser.get(path)).status_code == 405


async def test_what_else_would_change_something_never_reaches_rq_dashboard(browser: httpx.AsyncClient) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert (await browser.request(method, "/0/view/queues")).status_code == 405


async def test_the_answers_of_buttons_are_shown_on_the_page(browser: httpx.AsyncClient) -> None:
    """Its own script passes over refusals."""
    assert '<script src="/prorl/notices.js"></script></body>' in (await browser.get("/0/view/jobs")).text
    assert ".text(said)" in (await browser.get("/prorl/notices.js")).text
