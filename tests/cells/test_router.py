"""The router: cells are one service, each run is in one of them, and a lost one stops its own runs alone."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.cells.cell import Cell
from api.cells.directory import Directory
from prorl_mq.cli import main
from prorl_mq.client.asynchronous import AsyncClient
from prorl_mq.schema.messages import BatchRequest, GroupRequest, Task
from prorl_mq.store.server.connection import RedisSettings
from tests.api.service import SOURCE, batch
from tests.cells.town import NAMES, Town, router, town

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]


@pytest.fixture
async def here(tmp_path: Path, settings: RedisSettings) -> AsyncIterator[Town]:
    async with town(tmp_path, settings) as made:
        yield made


async def one(client: httpx.AsyncClient, path: str, status: int = 200) -> Any:
    answer = await client.get(path)
    assert answer.status_code == status, answer.text
    return answer.json()


def homes(runs: int = 40) -> dict[str, list[str]]:
    """Names of runs, by the cell where it is noted where each is."""
    directory = Directory([Cell(name, "http://nowhere") for name in NAMES])
    found: dict[str, list[str]] = {name: [] for name in NAMES}
    for number in range(runs):
        found[directory.home(f"run-{number}").name].append(f"run-{number}")
    return found


async def test_trainers_use_it_as_one_service(here: Town) -> None:
    """Each run is in one cell, whatever cell its batches, results, acknowledgements and cancels are sent from."""
    async with router(here.file) as client, AsyncClient(str(client.base_url)) as trainer:
        runs = [f"run-{number}" for number in range(9)]
        for run in runs:
            groups = [GroupRequest(task=Task(task_id="t", data_source=SOURCE, payload={"question": "?"}), n=1)]
            request = BatchRequest(run_id=run, batch_id="b", groups=groups)
            assert not (await trainer.submit(request)).repeated
            assert (await trainer.submit(request)).repeated
        held = {run: await here.holding(run) for run in runs}
        assert all(len(cells) == 1 for cells in held.values()), held
        listed = await one(client, "/v1/runs")
        assert [(each["run_id"], [each["cell"]]) for each in listed["runs"]] == sorted(held.items())
        assert listed["unavailable"] == []
        for run in runs:
            async with here.worker(held[run][0]) as worker:
                await worker.complete()
            async for closed in trainer.groups(run, "b"):
                assert closed.record.run_id == run
                assert (await trainer.trajectory(closed.record.samples[0].job_id)).segments
                assert (await trainer.job(closed.record.samples[0].job_id)).stage
                assert await trainer.ack(run, [closed.cursor]) == 1
        assert (await trainer.cancel("run", runs[0])).state == "cancelled"
        assert {each["cell"]: each["answers"] for each in (await one(client, "/v1/cells"))["cells"]} == dict.fromkeys(
            NAMES, True
        )


@pytest.mark.parametrize("noted", [True, False])
async def test_two_routers_at_once_place_a_run_in_one_cell(here: Town, noted: bool, tmp_path: Path) -> None:
    """The control: each names the cells that it finds emptiest by itself, and a run is in several."""
    async with router(here.file) as first, router(here.file) as second:

        async def submit(client: httpx.AsyncClient, number: int, cell: str) -> None:
            if not noted:
                async with httpx.AsyncClient(timeout=60) as straight:
                    await straight.post(f"{here.urls[cell]}/v1/batches", json=batch(run=f"r{number}"))
                return
            answer = await client.post("/v1/batches", json=batch(run=f"r{number}"))
            assert answer.status_code in {200, 202}, answer.text

        await asyncio.gather(
            *(submit(client, number, cell) for number in range(12) for client, cell in ((first, "a"), (second, "b")))
        )
        counts = {len(await here.holding(f"r{number}")) for number in range(12)}
    assert counts == ({1} if noted else {2})


async def test_a_lost_cell_stops_its_own_runs_alone(here: Town, capsys: pytest.CaptureFixture[str]) -> None:
    async with router(here.file) as client:
        named = homes()
        first = [runs[0] for runs in named.values()]
        for run in first:
            assert (await client.post("/v1/batches", json=batch(run=run))).status_code == 202
        held = {run: (await here.holding(run))[0] for run in first}
        lost = held[first[0]]
        here.stop(lost)
        await asyncio.sleep(0.1)
        for run, cell in held.items():
            if cell != lost:
                began = time.monotonic()
                await one(client, f"/v1/runs/{run}")
                assert time.monotonic() - began < 2, "a run that was known waited for the lost cell"
        await here.kill(lost)
        runs = await one(client, "/v1/runs")
        assert runs["unavailable"] == [lost]
        assert {each["run_id"] for each in runs["runs"]} == {run for run, cell in held.items() if cell != lost}
        at = ("--url", str(client.base_url))
        assert await asyncio.to_thread(main, ["run", *at]) == 0
        assert f"cell {lost} does not answer: its runs are missing" in capsys.readouterr().err
        for words in ([], ["--weight", "3"]):  # what else it was set to is not known, and would be the default
            assert await asyncio.to_thread(main, ["run", first[0], *words, *at]) == 2
            assert f"cell {lost} does not answer, and may have run {first[0]!r}" in capsys.readouterr().err
        refused = await one(client, f"/v1/runs/{first[0]}", 503)
        assert f"cell {lost} does not answer" in refused["detail"]
        for home, names in named.items():
            answer = await client.post("/v1/batches", json=batch(run=names[1]))
            assert answer.status_code == (503 if home == lost else 202), answer.text
        told = await one(client, "/v1/overview")
        assert f"cell {lost} does not answer" in told["waits"]
        assert [each["cell"] for each in (await one(client, "/v1/cells"))["cells"] if not each["answers"]] == [lost]
        assert (await one(client, "/readyz"))["status"] == "ready"
        assert f'prorl_cell_up{{cell="{lost}"}} 0' in (await client.get("/metrics")).text
        policy = await client.post("/v1/pools/policy/policy", json={"version": 7})
        assert policy.status_code == 503
        assert f"not announced in {lost}" in policy.json()["detail"]


async def test_a_moved_run_is_followed_and_its_new_cell_noted(here: Town) -> None:
    """Cells of a stand-in API, since a move is a matter of theirs: `a` says that the run is in `b`, `b` that it is in
    `a` where it is asked for another one.
    """
    asked: list[tuple[str, str]] = []

    def answering(name: str) -> Any:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            path = (await reader.readuntil(b"\r\n\r\n")).decode().split()[1]
            asked.append((name, path))
            gone = name == "a" or "round" in path
            body = json.dumps({"cell": "b" if name == "a" else "a", "run_id": "moved"}).encode()
            status = b"421 Misdirected Request" if gone and not path.endswith("/cell") else b"200 OK"
            head = b"HTTP/1.1 %b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
            writer.write(head % (status, len(body)) + body)
            await writer.drain()
            writer.close()

        return answer

    servers = {name: await asyncio.start_server(answering(name), "127.0.0.1", 0) for name in ("a", "b")}
    here.urls = {name: f"http://127.0.0.1:{each.sockets[0].getsockname()[1]}" for name, each in servers.items()}
    try:
        async with router(here.file) as client:
            for _ in range(2):
                answer = await client.get("/v1/runs/moved/results")
                assert (answer.status_code, answer.headers["x-prorl-cell"]) == (200, "b")
            assert [name for name, path in asked if path == "/v1/runs/moved/results"] in (["a", "b", "b"], ["b", "b"])
            circle = await client.get("/v1/runs/round/results")
            assert (circle.status_code, circle.json()["title"]) == (508, "Loop Detected")
    finally:
        for server in servers.values():
            server.close()


async def test_the_events_of_all_cells_are_one_stream(here: Town) -> None:
    """It continues where it was cut, and tells of a cell that is lost."""
    async with router(here.file) as client:
        kinds, after = set[str](), ""
        for run in [names[0] for names in homes().values()]:
            await client.post("/v1/batches", json=batch(run=run))
        async with client.stream("GET", "/v1/watch?seconds=30") as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            await here.kill("b")
            async for line in answer.aiter_lines():
                kinds |= {line.partition(": ")[2]} if line.startswith("event: ") else set()
                after = line.partition(": ")[2] if line.startswith("id: ") else after
                if line == 'data: {"cell":"b"}':
                    break
        assert "lost" in kinds
        assert {each.partition("=")[0] for each in after.split(",") if each} <= set(NAMES)
        assert (await client.get("/v1/watch?seconds=x")).status_code == 422
        assert (await client.get("/v1/watch?seconds=0")).status_code == 200


async def test_a_backend_is_in_one_cell_and_a_version_in_all(here: Town) -> None:
    async with router(here.file) as client:
        addresses = [f"http://127.0.0.1:{9000 + number}" for number in range(3)]
        for address in addresses:
            assert (await client.post("/v1/pools/policy/backends", json={"address": address})).status_code == 201
            assert (await client.post("/v1/pools/policy/backends", json={"address": address})).status_code == 200
        listed = (await one(client, "/v1/pools/policy/backends"))["backends"]
        assert sorted(each["address"] for each in listed) == addresses
        assert sorted(each["cell"] for each in listed) == list(NAMES)
        answer = await client.post("/v1/pools/policy/policy", json={"version": 3})
        assert (answer.status_code, answer.json()["version"]) == (200, 3)
        for url in here.urls.values():
            async with httpx.AsyncClient(timeout=30) as straight:
                assert (await straight.get(f"{url}/v1/pools/policy/policy")).json()["version"] == 3
        [pool] = (await one(client, "/v1/pools"))["pools"]
        assert len(pool["backends"]) == 3
        gone = await client.delete("/v1/pools/policy/backends", params={"address": addresses[0]})
        assert gone.json()["state"] == "left", gone.text
        unknown = await client.post("/v1/pools/policy/backends?cell=z", json={"address": addresses[0]})
        assert (unknown.status_code, unknown.json()["field"]) == (404, "cell")


async def test_what_a_cell_refuses_its_caller_is_told(here: Town) -> None:
    async with router(here.file) as client:
        for body, status in ((b"{", 422), (b'{"run_id": 1}', 422), (b"", 422), (b'{"run_id": "r"}', 422)):
            headers = {"Content-Type": "application/json"}
            answer = await client.post("/v1/batches", content=body, headers=headers)
            assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
        assert (await one(client, "/v1/runs/none", 404))["detail"].startswith("there is no run 'none'")
        assert (await client.get("/v1/nothing")).status_code == 404
        assert (await client.put("/v1/runs/new", json={"weight": 2})).json()["settings"]["weight"] == 2
        assert len(await here.holding("new")) == 1
        page = await client.get("/ui/")
        assert page.status_code == 200
        foreign = await client.get("/v1/runs", headers={"Origin": "http://elsewhere.example"})
        assert foreign.status_code == 403
        headers = {"Content-Type": "application/json"}
        large = await client.post("/v1/batches", content=b" " * (20 << 20), headers=headers)
        assert large.status_code == 413


async def test_a_caller_that_goes_away_ends_what_it_waits_for(here: Town) -> None:
    async with router(here.file) as client:
        await client.post("/v1/batches", json=batch(run="slow"))
        cell = (await here.holding("slow"))[0]

        def open_there() -> int:
            """Connections to the cell's API that are established."""
            port = f":{int(here.urls[cell].rpartition(':')[2]):04X}"
            lines = Path(f"/proc/{here.processes[cell].pid}/net/tcp").read_text().splitlines()[1:]
            return sum(line.split()[1].endswith(port) and line.split()[3] == "01" for line in lines)

        async def until(true: Callable[[int], bool]) -> None:
            async with asyncio.timeout(20):
                while not true(open_there()):
                    await asyncio.sleep(0.05)

        waits = [asyncio.create_task(client.get("/v1/runs/slow/results?wait=50")) for _ in range(8)]
        await until(lambda count: count >= len(waits))
        for each in waits:
            each.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        await until(lambda count: count <= 2)
