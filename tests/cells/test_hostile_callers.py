"""Callers and cells that mean harm, or have the worst of luck: no run is in two cells, and nobody costs others more."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.types import Message

from api.cells import app, cell, directory, merging, watching
from api.cells.cell import Cell, load
from api.cells.directory import Directory
from api.places import Places
from api.problems import Problem
from prorl_mq.errors import ConfigurationError
from prorl_mq.schema.ids import TenantId
from slurm.servers.certificates import authority, issue
from tests.cells.test_strange_cells import OVERVIEW, PROPER, routed
from tests.cells.town import router

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]
NAMES = ("a", "b", "c")
RUN = {
    "run_id": "r", "settings": {}, "backlog": 0, "backlog_eval": 0, "in_flight": 0, "unacked_groups": 0,
    "unacked_bytes": 0, "why": "", "paused_until_ms": None,
}  # fmt: skip
STAGE = {"stage": "run", "queued": 0, "running": 0, "oldest_age_s": 0.0, "workers": 1, "slots": 1, "busy": 0}


class Paper:
    """A cell that keeps runs and notes, and does nothing."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.runs = set[str]()
        self.notes = dict[str, str]()
        self.asked: list[tuple[str, str]] = []
        self.heads: list[str] = []
        self.says: Callable[[str, str], tuple[int, Any, str] | None] = lambda *_: None  # in place of an answer
        self.open = 0  # connections
        self.url = ""
        self._server: asyncio.Server | None = None

    async def start(self, context: ssl.SSLContext | None = None) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", ssl=context)
        scheme = "http" if context is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            method, path = head.split()[0].upper(), head.split()[1].partition("?")[0]
            length = head.partition("content-length: ")[2].partition("\r")[0]
            body = await reader.readexactly(int(length or 0))
            self.asked.append((method, path))
            self.heads.append(head)
            status, told, more = self.says(method, path) or self._answer(method, path, body)
            if status == 0:
                await reader.read()  # until the other side ends it
            else:
                text = told if isinstance(told, bytes) else json.dumps(told).encode()
                head = f"HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: {len(text)}\r\n{more}\r\n"
                writer.write(head.encode() + text)
                await writer.drain()
        self.open -= 1
        writer.close()

    def _answer(self, method: str, path: str, body: bytes) -> tuple[int, Any, str]:
        parts = path.split("/")[2:]
        if path == "/v1/overview":
            return 200, OVERVIEW | {"stages": [STAGE]}, ""
        if parts[:1] == ["batches"]:
            self.runs.add(json.loads(body)["run_id"])
            return 202, {}, ""
        if parts[-1] == "cell":
            if method == "PUT" and self.notes.get(parts[1]) in {None, json.loads(body)["was"]}:
                self.notes[parts[1]] = json.loads(body)["cell"]
            return (200, {"cell": self.notes[parts[1]]}, "") if parts[1] in self.notes else (404, {}, "")
        if parts[:1] == ["runs"] and len(parts) > 1:
            return (200 if parts[1] in self.runs else 404), {}, ""
        return 200, PROPER.get(path, {}), ""


@contextlib.asynccontextmanager
async def papers(*names: str) -> AsyncIterator[dict[str, Paper]]:
    made = {name: Paper(name) for name in names}
    try:
        for each in made.values():
            await each.start()
        yield made
    finally:
        for each in made.values():
            each.stop()


def urls(of: dict[str, Paper]) -> dict[str, str]:
    return {name: each.url for name, each in of.items()}


def homed(at: str, names: tuple[str, ...]) -> Iterator[str]:
    """Names of runs whose home is a cell."""
    known = Directory([Cell(name, "http://nowhere") for name in names])
    return (run for run in map("run-{}".format, range(1000)) if known.home(run).name == at)


def batch(run: str) -> dict[str, Any]:
    return {"run_id": run, "batch_id": "b", "groups": []}


@pytest.mark.parametrize("run", ["a/b", "../x", "", "x:y", "a b", "é", "a" * 9000, "r/groups", "a\0b", "a\n"])
async def test_a_name_that_no_run_can_have_asks_one_cell_alone(run: str) -> None:
    """It says what is wrong, and a caller costs no more requests than it makes."""
    async with papers(*NAMES) as cells, routed(**urls(cells)) as client:
        for each in cells.values():
            each.says = lambda method, path: (422, {"detail": "a name"}, "") if path == "/v1/batches" else None
        answer = await client.post("/v1/batches", json=batch(run))
        assert (answer.status_code, answer.json()) == (422, {"detail": "a name"})
        assert [each for of in cells.values() for each in of.asked] == [("POST", "/v1/batches")]


@pytest.mark.parametrize("guarded", [True, False])
async def test_a_large_body_is_read_from_whom_a_cell_lets_in(guarded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory of a router is not for strangers. The control: without the question it is all read."""
    if not guarded:
        monkeypatch.setattr(app, "OF_STRANGERS", 1 << 40)
    read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        for _ in range(64):
            read += 1
            yield b" " * 4096

    async with papers("a") as cells, routed(**urls(cells)) as client:
        refused = 401, {"detail": "no token"}, "WWW-Authenticate: Bearer\r\nRetry-After: 7\r\n"
        cells["a"].says = lambda *_: refused
        headers = {"Content-Length": "262144"} if not guarded else {}
        answer = await client.post("/v1/batches", content=endless(), headers=headers)
        assert answer.status_code == 401
        assert (read == 0) is guarded
        if guarded:
            assert (answer.headers["www-authenticate"], answer.headers["retry-after"]) == ("Bearer", "7")
            longer = await client.post("/v1/batches", content=endless(), headers={"Content-Length": "99999999999"})
            assert (longer.status_code, read) == (413, 0)


@pytest.mark.parametrize("asked", ["all", "one"])
@pytest.mark.parametrize("how", ["gone", "busy"])
async def test_a_lost_cell_keeps_no_large_body_from_another(
    how: str, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any cell knows the caller. The control asks the first one alone."""
    if asked == "one":
        monkeypatch.setattr(Directory, "by_answers", lambda of: list(of.cells.values())[:1])
    async with papers("a", "b") as cells, routed(**urls(cells)) as client:
        run = next(run for run in homed("b", ("a", "b")))
        assert (await client.post("/v1/batches", json=batch(run))).status_code == 202
        if how == "gone":
            cells["a"].stop()
        else:
            cells["a"].says = lambda *_: (503, {}, "")
        large = batch(run) | {"groups": ["x" * app.OF_STRANGERS]}
        assert (await client.post("/v1/batches", json=large)).status_code == (202 if asked == "all" else 503)


async def test_what_any_cell_answers_is_asked_of_one_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first request may meet the lost one; those after it do not, however long it is away."""
    monkeypatch.setattr(cell, "LOST_S", 0.0)
    async with papers("a", "b") as cells, routed(**urls(cells)) as client:
        cells["a"].stop()
        assert [(await client.get("/v1/access")).status_code for _ in range(4)] == [503, 200, 200, 200]


@pytest.mark.parametrize("sure", [True, False])
async def test_what_is_asked_for_while_a_cell_is_silent_is_not_said_to_be_nowhere(
    monkeypatch: pytest.MonkeyPatch, sure: bool
) -> None:
    """A trainer that is told that its run is gone ends; told to try again, it waits. The control takes any answer for
    one that says whether the cell knows the run.
    """
    if not sure:
        monkeypatch.setattr(directory, "_sure", lambda _, answer: answer)
    async with papers(*NAMES) as cells, routed(**urls(cells)) as client:
        run = next(homed("a", NAMES))
        assert (await client.get(f"/v1/runs/{run}")).status_code == 404
        cells["b"].says = lambda *_: (503, {}, "Retry-After: 9\r\n")
        answer = await client.get(f"/v1/runs/{run}")
        assert answer.status_code == (503 if sure else 404)
        if not sure:
            return
        assert "cell b" in answer.json()["detail"]
        cells["a"].says = lambda *_: (429, {}, "")
        cells["b"].says = lambda *_: None
        assert (await client.get(f"/v1/runs/{run}")).status_code == 503


async def test_a_run_whose_home_was_another_before_a_cell_was_added_is_placed_once() -> None:
    """Its cell is lost when it is submitted to again; the note is at the home that it had."""
    async with papers(*NAMES) as cells:
        run = next(run for run in homed("c", NAMES) if run in set(homed("a", ("a", "b"))))
        cells["b"].runs.add(run)
        cells["a"].notes[run] = "b"
        cells["b"].says = lambda *_: (503, {}, "")
        async with routed(**urls(cells)) as client:
            answer = await client.post("/v1/batches", json=batch(run))
            assert answer.status_code == 503
            assert not cells["c"].runs | cells["a"].runs
            other = next(each for each in homed("c", NAMES) if each != run)
            assert (await client.post("/v1/batches", json=batch(other))).status_code == 202
            cells["b"].says = lambda *_: None
            assert (await client.post("/v1/batches", json=batch(run))).headers["x-prorl-cell"] == "b"
        assert cells["c"].notes[run] == "b", "its new home notes it from now on"


async def test_routers_of_two_files_do_not_deny_each_others_runs() -> None:
    async with papers(*NAMES) as cells:
        run = next(homed("a", ("a", "b")))
        cells["a"].notes[run] = "c"
        cells["c"].runs.add(run)
        async with routed(a=cells["a"].url, b=cells["b"].url) as client:
            for answer in (await client.get(f"/v1/runs/{run}"), await client.post("/v1/batches", json=batch(run))):
                assert answer.status_code == 502
                assert "names no cell 'c'" in answer.json()["detail"]


async def test_a_placement_that_was_cut_is_finished_where_it_began() -> None:
    """A router notes the cell of a run and dies; another one submits there, though a third cell is emptier now."""
    async with papers(*NAMES) as cells, routed(**urls(cells)) as client:
        run = next(homed("a", NAMES))
        cells["a"].notes[run] = "b"
        busy = OVERVIEW | {"stages": [STAGE | {"queued": 99}]}
        cells["b"].says = lambda method, path: (200, busy, "") if path == "/v1/overview" else None
        assert (await client.post("/v1/batches", json=batch(run))).headers["x-prorl-cell"] == "b"


@pytest.mark.parametrize("ranked", [True, False])
async def test_idle_cells_share_new_runs(ranked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: without a rank of its own for each run they all go to one."""
    async with papers(*NAMES) as cells, routed(**urls(cells)) as client:
        if not ranked:
            monkeypatch.setattr(directory, "_rank", lambda cell, run: b"")
        for number in range(12):
            await client.post("/v1/batches", json=batch(f"r{number}"))
        assert sum(bool(each.runs) for each in cells.values()) == (3 if ranked else 1)


async def test_a_run_that_is_used_is_noted_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with papers("a") as cells, routed(**urls(cells)) as client:
        for wait_s, puts in ((3600.0, 1), (0.0, 2)):
            monkeypatch.setattr(directory, "NOTED_S", wait_s)
            for _ in range(2 if puts == 1 else 1):
                assert (await client.post("/v1/batches", json=batch("r"))).status_code == 202
            assert cells["a"].asked.count(("PUT", "/v1/runs/r/cell")) == puts
        cells["a"].says = lambda method, path: (503, {}, "") if path.endswith("/cell") else None
        assert (await client.post("/v1/batches", json=batch("r"))).status_code == 202, "that it is noted can wait"


async def test_what_a_router_knows_of_one_token_it_does_not_use_for_another() -> None:
    """The second caller's own questions are asked again, and with the first of two tokens, as a cell reads them."""
    async with papers("a", "b") as cells, routed(**urls(cells)) as client:
        run = next(homed("a", ("a", "b")))
        cells["b"].runs.add(run)
        assert (await client.get(f"/v1/runs/{run}", headers={"Authorization": "Bearer one"})).status_code == 200
        for each in cells.values():
            each.asked.clear()
            each.heads.clear()
        two = [("Authorization", "Bearer two"), ("Authorization", "Bearer one")]
        assert (await client.get(f"/v1/runs/{run}", headers=two)).status_code == 200
        assert ("GET", f"/v1/runs/{run}/cell") in cells["a"].asked
        heads = [head for each in cells.values() for head in each.heads]
        assert heads
        assert all("authorization: bearer two" in head and "bearer one" not in head for head in heads)


@pytest.mark.parametrize("noted", [True, False])
async def test_who_may_only_read_follows_a_run_that_has_moved(noted: bool) -> None:
    """Whose note is refused. A cell that misses its own name in Host answers 421 too, and has no run."""
    async with papers(*NAMES) as cells, routed(**urls(cells)) as client:
        run = next(homed("a", NAMES))
        cells["c"].says = lambda *_: (421, {"detail": "not by this name"}, "")
        cells["b"].says = lambda method, path: (421, {"cell": "a"}, "") if path == f"/v1/runs/{run}" else None
        cells["a"].says = lambda method, path: (403, {"detail": "read only"}, "") if method == "PUT" else None
        cells["a"].runs.add(run)
        if noted:
            cells["a"].notes[run] = "b"
        answer = await client.get(f"/v1/runs/{run}")
        assert (answer.status_code, answer.headers["x-prorl-cell"]) == (200, "a")


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("tennant=t", "did you mean 'tenant'"),
        ("tenant=t&tenant=u", "occurs twice"),
        ("tenant=t%3Au", "there is no tenant 't:u'"),
        ("lost=yes", "lost is true or false, not 'yes'"),
        ("los=true", "did you mean 'lost'"),
    ],
)
async def test_a_misspelled_move_asks_no_cell(query: str, said: str) -> None:
    """It would concern the caller's own run of that name, or take one back that was not said to be lost."""
    async with papers("a") as cells, routed(**urls(cells)) as client:
        answer = await client.delete(f"/v1/runs/r/move?{query}")
        assert answer.status_code in {404, 422}
        assert said in answer.json()["detail"]
        assert cells["a"].asked == []


async def test_a_backend_goes_to_the_cell_that_its_caller_names() -> None:
    async with papers("a", "b") as cells, routed(**urls(cells)) as client:
        for name in ("a", "b"):
            named = await client.post(f"/v1/pools/p/backends?cell={name}", json={"address": "http://x:1"})
            assert named.headers["x-prorl-cell"] == name
            assert "cell=" not in cells[name].heads[-1].partition("http/1.1")[0]


async def test_shares_of_the_callers_jobs_are_told_across_cells() -> None:
    async with papers(*NAMES) as cells, routed(**urls(cells)) as client:
        for name, jobs in (("a", 3), ("b", 1)):
            told = {"runs": [RUN | {"in_flight": jobs}]}
            cells[name].says = lambda method, path, told=told: (200, told, "") if path == "/v1/runs" else None  # type: ignore[misc]
        found = (await client.get("/v1/cells")).json()["cells"]
    assert [(each["cell"], each["share"], each["slots"], each["load"]) for each in found] == [
        ("a", 0.75, 1, 0.0), ("b", 0.25, 1, 0.0), ("c", 0.0, 1, 0.0),
    ]  # fmt: skip


async def test_a_stream_has_a_place_until_it_ends() -> None:
    """Else a router would follow all cells for any number of viewers."""
    places = Places(1, 1, "streams")
    ended = asyncio.Event()

    async def messages() -> AsyncGenerator[bytes, None]:
        yield b"a"
        await ended.wait()

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        started.set()

    started = asyncio.Event()
    first = asyncio.create_task(watching.Stream(messages(), places, TenantId("t"))({"type": "http"}, receive, send))
    await started.wait()
    with pytest.raises(Problem, match="have fewer"):
        await watching.Stream(messages(), places, TenantId("t"))({"type": "http"}, receive, send)
    ended.set()
    await first
    assert places.free == 1


async def test_a_cell_of_a_release_without_notes_is_told() -> None:
    async with papers("a") as cells, routed(**urls(cells)) as client:
        cells["a"].says = lambda method, path: (404, {"detail": "no path"}, "") if path.endswith("/cell") else None
        answer = await client.post("/v1/batches", json=batch("r"))
        assert answer.status_code == 502
        assert "cell a takes no note" in answer.json()["detail"]


async def test_a_redirect_of_a_cell_leads_no_caller_out() -> None:
    async with papers("a") as cells, routed(**urls(cells)) as client:
        cells["a"].says = lambda *_: (307, b"", "Location: http://inside:1/\r\n")
        for path in ("/v1/jobs/r:b-0:0", "/openapi.json"):
            answer = await client.get(path)
            assert answer.status_code in {404, 502}
            assert "location" not in answer.headers
        assert "http://inside:1/" in answer.json()["detail"]


@pytest.mark.parametrize("bounded", [True, False])
async def test_a_cell_that_takes_requests_and_answers_none_is_lost_in_the_end(
    monkeypatch: pytest.MonkeyPatch, bounded: bool
) -> None:
    """The control waits for it as long as it takes."""
    async with papers("a") as cells:
        cells["a"].runs.add("r")
        monkeypatch.setattr(cell, "SILENT_S", 0.3 if bounded else 3600.0)
        async with routed(**urls(cells)) as client:
            assert (await client.get("/v1/runs/r")).status_code == 200
            cells["a"].says = lambda *_: (0, b"", "")
            if not bounded:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.5):
                        await client.get("/v1/runs/r")
                return
            answer = await client.get("/v1/runs/r")
            assert answer.status_code == 503
            assert "cell a does not answer" in answer.json()["detail"]


def test_metrics_with_odd_labels_are_one_document() -> None:
    """Label values may have other ends of lines than \\n, braces, quotes and spaces."""
    values = ["x\u2028y", "x\x0by", "x\x85y", "{a}", 'q\\"q', "a b", "back\\\\slash", ""]
    lines = "".join(f'm{{v="{value}"}} 1\n' for value in values)
    text = f"# HELP m Some text\u2028of two\n# TYPE m gauge\n{lines}# HELP n N\n# TYPE n gauge\nn 2\nn{{}} 3\n"
    merged = merging.metrics({"a": text, "b.c-d": text})
    found = {each.name: each.samples for each in text_string_to_metric_families(merged)}
    plain = {"x\u2028y", "x\x0by", "x\x85y", "{a}", 'q"q', "a b", "back\\slash", ""}
    assert {each.labels["v"] for each in found["m"]} == plain
    assert {each.labels["cell"] for each in found["n"]} == {"a", "b.c-d"}
    assert (len(found["m"]), len(found["n"])) == (2 * len(values), 4)


async def test_a_slow_reader_of_a_stream_that_is_cut_gets_each_message_once() -> None:
    """What is in the queue already is not asked for again; a place of no cell is not repeated."""
    after: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).decode().split()[1]
        after.append(path.partition("after=")[2])
        first = int(after[-1].partition("-")[0] or 0) + 1
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nretry: 1000\n\n")
        writer.write(b"".join(b"id: %d-0\nevent: changes\ndata: %d\n\n" % (n, n) for n in range(first, first + 3)))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1")
    only = Cell("a", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    await only.open()
    got: list[bytes] = []
    async with contextlib.aclosing(watching.merged([only], {}, "zzz=9-9", 30)) as messages:
        assert await anext(messages) == b"retry: 1000\n\n"
        got.append(await anext(messages))
        while len(after) < 3:
            await asyncio.sleep(0.05)  # two connections were cut before it reads on
        got += [await anext(messages) for _ in range(6)]
    await only.close()
    server.close()
    assert [int(each.partition(b"data: ")[2]) for each in got] == list(range(1, 8))
    assert b"zzz" not in b"".join(got)
    assert after[:3] == ["", "3-0", "6-0"]


async def test_who_leaves_a_stream_ends_it_at_the_cell(tmp_path: Path) -> None:
    async with papers("a") as cells:
        file = tmp_path / "cells.toml"
        file.write_text(f'[cells]\na = "{cells["a"].url}"\n')
        cells["a"].says = lambda method, path: (0, b"", "") if path == "/v1/watch" else None
        async with router(file) as client:
            for _ in range(3):
                async with client.stream("GET", "/v1/watch?seconds=60") as answer:
                    assert (answer.status_code, answer.headers["x-accel-buffering"]) == (200, "no")
                    parts = answer.aiter_bytes()
                    await anext(parts)
                    async with asyncio.timeout(20):
                        while not cells["a"].open:
                            await asyncio.sleep(0.02)
                async with asyncio.timeout(20):
                    while cells["a"].open:
                        await asyncio.sleep(0.02)


@pytest.mark.parametrize("trusted", [True, False])
async def test_a_cell_with_an_authority_of_its_own(
    trusted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: where the authority is not named, no request is sent."""
    (tmp_path / "ca.pem").write_text(authority(tmp_path / "tls"))
    issue(tmp_path / "tls", "server", tmp_path / "own.pem", address="127.0.0.1")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "own.pem")
    only = Paper("a")
    await only.start(context)
    (tmp_path / "cells.toml").write_text(f'[cells]\na = "{only.url}"\n')
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    async with router(tmp_path / "cells.toml") as client:
        answer = await client.get("/v1/access")
    only.stop()
    assert answer.status_code == (200 if trusted else 503)
    assert bool(only.asked) is trusted


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x", r"no TOML.*at end"),
        ("", r"missing required field `cells`.*NAME = "),
        ("[cells]", r"\$\.cells.*NAME = "),
        ("[cells]\na = 1", r"\$\.cells.*NAME = "),
        ('[cells]\n"a b" = "http://x:1"', "a name may have"),
        ('hosts = "x"\n[cells]\na = "http://x:1"', "unknown field 'hosts'.*did you mean 'host'"),
        ('[cells]\na = "http://x:1"\nb = "http://X:1/"', "twice, as a and as b"),
        *((f'[cells]\na = "{url}"', r"cell a: .*is no address of an API: http://HOST:PORT") for url in (
            "x:1", "ftp://x", "http://", "http://x:y", "http://x:99999", "http://u:p@x:1", "http://x:1?y=1",
            "http://[::1", "unix://rel/sock", "http://x y:1",
        )),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_with_what_to_write(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "cells.toml").write_text(text)
    with pytest.raises(ConfigurationError, match=said):
        _ = [Cell(name, url) for name, url in load(tmp_path / "cells.toml").cells.items()]
