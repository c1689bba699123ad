"""A run moves to another cell while others run: nothing of it is lost, doubled or in two cells, wherever that ends."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from api.cells.cell import Cell
from api.cells.directory import Directory
from api.cells.moving import Mover
from api.cells.places import RunPlaces
from api.problems import Problem
from prorl_mq.cli import main
from prorl_mq.client.asynchronous import AsyncClient
from prorl_mq.schema.ids import RunRef
from prorl_mq.service.fsck.look import look
from prorl_mq.store.server.connection import RedisSettings, ask
from tests.api.service import batch, closed
from tests.cells.town import Town, router, town

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]
RUN = RunRef("default:r")


@pytest.fixture
async def here(tmp_path: Path, settings: RedisSettings) -> AsyncIterator[Town]:
    async with town(tmp_path, settings, ("a", "b")) as made:
        yield made


async def sent(url: str, method: str, path: str, status: int = 200, **more: Any) -> Any:
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        answer = await client.request(method, f"/v1/runs/r{path}", **more)
    assert answer.status_code == status, answer.text
    return answer.json()


async def straight(here: Town, cell: str, run: str = "r", groups: int = 3, **more: Any) -> None:
    """A batch of a run, at a cell."""
    async with httpx.AsyncClient(timeout=60) as client:
        answer = await client.post(f"{here.urls[cell]}/v1/batches", json=batch(run=run, groups=groups, **more))
    assert answer.status_code == 202, answer.text


async def clean(here: Town) -> None:
    """Neither cell violates an invariant."""
    for name in here.urls:
        async with here.worker(name) as worker:
            found = await look(worker.store)
            theirs = [each for each in found.violations if each.key != worker.keys.worker("worker-1")]  # the test's own
            assert theirs == [], (name, theirs)


async def paused(here: Town, cell: str) -> None:
    await sent(here.urls[cell], "POST", "/pause", json={"for_ms": 60_000})


async def fill(here: Town) -> None:
    """At `a`, a run with one result that nobody has acknowledged, one that somebody has, and two groups that wait."""
    await straight(here, "a", groups=2, name="first")
    async with here.worker("a") as worker:
        await worker.complete()
        await worker.complete()
    async with httpx.AsyncClient(base_url=here.urls["a"], timeout=60) as client:
        async with asyncio.timeout(30):
            while len((page := await closed(client, "r"))["results"]) < 2:
                await asyncio.sleep(0.05)
    await sent(here.urls["a"], "POST", "/ack", json={"cursors": [page["results"][0]["cursor"]]})
    await sent(here.urls["a"], "PUT", "", json={"weight": 3})
    await paused(here, "a")
    await straight(here, "a", groups=2, name="second")


async def finish(here: Town, client: httpx.AsyncClient) -> None:
    """The moved run ends at `b`, with every result exactly once."""
    async with AsyncClient(str(client.base_url)) as trainer:
        status = (await client.get("/v1/runs/r")).json()
        assert (status["settings"]["weight"], status["backlog"], status["unacked_groups"]) == (3, 2, 1)
        again = await client.post("/v1/batches", json=batch(run="r", groups=2, name="first"))
        assert again.json()["repeated"], again.text
        await client.post("/v1/runs/r/resume")
        async with here.worker("b") as worker:
            await worker.complete()
            await worker.complete()
        names, cursors = list[str](), list[str]()
        while len(names) < 3:
            async with asyncio.timeout(30):
                page = await closed(client, "r", after=cursors[-1] if cursors else "0")
            for each in page["results"]:
                names.append(each["group"]["group_id"])
                cursors.append(each["cursor"])
                job = each["group"]["samples"][0]["job_id"]
                assert (await trainer.trajectory(job)).segments
        assert sorted(names) == ["first-1", "second-0", "second-1"] or sorted(names) == [
            "first-0",
            "second-0",
            "second-1",
        ]
        assert await trainer.ack("r", cursors) == 3
        assert (await closed(client, "r", wait=0))["results"] == []


async def test_a_run_moves_while_another_runs_and_ends_with_each_result_once(
    here: Town, capsys: pytest.CaptureFixture[str]
) -> None:
    await fill(here)
    await straight(here, "a", run="busy", groups=1)
    async with here.worker("a") as busy:
        held = await busy.in_run()
        async with router(here.file) as client:
            moved = await client.post("/v1/runs/r/move", json={"cell": "b"})
            assert moved.json() == {"run_id": "r", "cell": "b", "state": "moved"}, moved.text
            assert (await client.post("/v1/runs/r/move", json={"cell": "b"})).json()["state"] == "there"
            assert await here.holding("r") == ["b"]
            assert (await sent(here.urls["a"], "GET", "/results", 421))["cell"] == "b"
            await clean(here)
            async with httpx.AsyncClient(timeout=30) as direct:
                late = await direct.post(f"{here.urls['a']}/v1/batches", json=batch(run="r", name="late"))
            assert (late.status_code, late.json()["cell"]) == (421, "b")
            await finish(here, client)
            words = ("--url", str(client.base_url), "--json")
            assert await asyncio.to_thread(main, ["move", "to", "r", "a", "5", *words]) == 0
            assert '"state":"moved"' in capsys.readouterr().out.replace(" ", "")
            assert await here.holding("r") == ["a"]
            assert await asyncio.to_thread(main, ["move", "back", "r", *words[:2]]) == 0
            assert capsys.readouterr().out == "run r is in a\n"
            assert await asyncio.to_thread(main, ["move", "to", "r", "nowhere", *words]) == 1
            assert "there is no cell 'nowhere': the router's file names a, b" in capsys.readouterr().err
            assert await asyncio.to_thread(main, ["move", "show", "r", "--url", here.urls["a"]]) == 2
            assert "is no router of several cells" in capsys.readouterr().err
        await busy.finish(held)
    await clean(here)


async def test_a_run_with_jobs_in_flight_stays_and_the_answer_says_what_is(here: Town) -> None:
    await straight(here, "a", groups=1)
    async with here.worker("a") as worker, router(here.file) as client:
        held = await worker.in_run()
        busy = await client.post("/v1/runs/r/move", json={"cell": "b", "within_s": 0})
        assert busy.status_code == 409
        assert "1 jobs" in busy.json()["detail"]
        assert (await client.get("/v1/runs/r")).headers["x-prorl-cell"] == "a"
        await worker.finish(held)
        moved = await client.post("/v1/runs/r/move", json={"cell": "b"})
        assert moved.json()["state"] == "moved", moved.text
        assert [each["cell"] for each in (await client.get("/v1/runs")).json()["runs"]] == ["b"]
    await clean(here)


@pytest.mark.parametrize("again", [True, False])
async def test_of_two_that_move_a_run_at_once_the_later_one_finds_it_there(
    here: Town, monkeypatch: pytest.MonkeyPatch, *, again: bool
) -> None:
    """The control: a mover that looks once says that both cells have the run."""
    await straight(here, "a", groups=1)
    async with here.worker("a") as worker:
        await worker.complete()
    cells = [Cell(name, url) for name, url in here.urls.items()]
    async with contextlib.AsyncExitStack() as stack:
        for cell in cells:
            await cell.open()
            stack.push_async_callback(cell.close)
        late, early = Mover(Directory(cells), "r", {}), Mover(Directory(cells), "r", {})
        looked = late._looked

        async def overtaken() -> RunPlaces:
            monkeypatch.setattr(late, "_looked", looked)
            found = await looked()
            assert (await early.move(cells[1], within_s=20))["state"] == "moved"
            return found

        monkeypatch.setattr(late, "_looked", overtaken)
        if again:
            assert (await late.move(cells[1], within_s=20))["state"] == "there"
        else:
            with pytest.raises(Problem, match="both say that they have run 'r'"):
                await late._once(cells[1], 20)
    assert await here.holding("r") == ["b"]


@pytest.mark.parametrize("steps", range(1, 5))
async def test_a_move_that_ends_at_any_step_is_finished_by_the_next(here: Town, steps: int) -> None:
    """The steps by hand, as many as were done; then the move again."""
    await fill(here)
    a, b = here.urls["a"], here.urls["b"]
    left: dict[str, str] = {}
    page: dict[str, Any] = {}

    async def begin() -> None:
        told = await sent(b, "PUT", "/arrival", json={"cell": "a", "mover": "dead"})
        assert told["state"] == "begun"

    async def depart() -> None:
        async with asyncio.timeout(30):
            left.update(await sent(a, "PUT", "/departure", json={"cell": "b"}))

    async def read() -> None:
        async with httpx.AsyncClient(timeout=60) as client:
            answer = await client.post(f"{a}/v1/runs/r/departure/page", json={"id": left["id"]})
            page.update(msgspec.msgpack.decode(answer.content))
        assert page["after"] is None

    async def write(after: str | None) -> None:
        sent = {"mover": "dead", "id": left["id"], "page": {**page, "after": after}, "first": after is not None}
        body = msgspec.msgpack.encode(sent)
        async with httpx.AsyncClient(timeout=60) as client:
            answer = await client.post(f"{b}/v1/runs/r/arrival/page", content=body)
        assert answer.json()["state"] == ("opened" if after is None else "written"), answer.text

    async def part() -> None:
        await read()
        await write("more")

    async def whole() -> None:
        await write(None)

    for step in (begin, depart, part, whole)[:steps]:
        await step()
    open_in = [name for name in ("a", "b") if await admits(here, name)]
    assert open_in == (["a"] if steps < 2 else [] if steps < 4 else ["b"])
    await clean(here)
    async with router(here.file) as client:
        moved = await client.post("/v1/runs/r/move", json={"cell": "b"})
        assert moved.json()["state"] == "moved", moved.text
        await clean(here)
        await finish(here, client)
    await clean(here)


async def admits(here: Town, name: str) -> bool:
    """True if the duties of a cell know the run."""
    async with here.worker(name) as worker:
        return await ask(worker.redis, "ZSCORE", worker.keys.runs, RUN) is not None


@pytest.mark.parametrize("fenced", [True, False])
async def test_what_comes_late_to_the_old_cell_is_refused(here: Town, fenced: bool) -> None:
    """The control: without the note that fences the run, a late batch is taken where nobody looks for it."""
    await fill(here)
    await sent(here.urls["b"], "PUT", "/arrival", json={"cell": "a", "mover": "m"})
    left = await sent(here.urls["a"], "PUT", "/departure", json={"cell": "b"})
    if not fenced:
        async with here.worker("a") as worker:
            await ask(worker.redis, "DEL", worker.keys.away(RUN))
    async with httpx.AsyncClient(timeout=60) as client:
        late = await client.post(f"{here.urls['a']}/v1/batches", json=batch(run="r", name="late"))
    assert late.status_code == (421 if fenced else 202), (late.text, left)
