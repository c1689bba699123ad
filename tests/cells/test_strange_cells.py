"""Cells that answer what no API of this release does: the router tells of them, and fails at none."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from api.cells import forwarding
from api.cells.app import create_app
from api.cells.cell import Cell

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

RATES = {"window_s": 60.0, "per_minute": {}}
OVERVIEW = {
    "at_ms": 1, "stages": [], "nodes": [], "nodes_in_all": 0, "rates": RATES, "waits": [], "backlog_groups": 0,
    "leased": 0, "delayed": 0, "paused": 0, "due": 0, "memory_bytes": 0, "memory_limit_bytes": 0,
}  # fmt: skip
PROPER: dict[str, Any] = {
    "/v1/overview": OVERVIEW,
    "/v1/runs": {"runs": []},
    "/v1/pools": {"pools": []},
    "/v1/access": {"tenant": "t", "may": "act"},
    "/readyz": {"status": "ready", "warnings": [], "memory_pressure": 0.1},
}
MERGED = ("/v1/overview", "/v1/runs", "/v1/pools", "/v1/cells", "/readyz", "/v1/pools/default/backends")
Reply = Callable[[str, dict[str, str]], bytes]


def told(body: bytes, status: str = "200 OK", extra: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n{extra}\r\n"
    return head.encode() + body


def proper(path: str, _: dict[str, str]) -> bytes:
    found = {"backends": []} if path.endswith("/backends") else PROPER.get(path, {"cell": "good"})
    return told(json.dumps(found).encode())


STRANGE: dict[str, Reply] = {
    "no JSON": lambda *_: told(b"<html>hello</html>"),
    "null": lambda *_: told(b"null"),
    "a list": lambda *_: told(b"[1]"),
    "nothing of it": lambda *_: told(b"{}"),
    "other types": lambda *_: told(b'{"runs":{"a":1},"stages":null,"pools":7,"backends":"x","status":3}'),
    "a redirect": lambda *_: told(b"", "302 Found", "Location: http://127.0.0.1:1/\r\n"),
    "an error of its own": lambda *_: told(b"oops", "500 Internal Server Error"),
    "a gateway's error": lambda *_: told(b"<html>", "502 Bad Gateway"),
    "no HTTP": lambda *_: b"SSH-2.0-OpenSSH\r\n",
    "nothing": lambda *_: b"",
    "half an answer": lambda *_: told(b"x" * 1000)[:-500],
    "bytes that are no text": lambda *_: told(b"\xff\xfe\x00" * 9),
}


@contextlib.asynccontextmanager
async def served(reply: Reply, seen: list[dict[str, str]] | None = None) -> AsyncIterator[str]:
    """A server that answers one request a connection."""

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.strip().split("\r\n")
            headers = {
                name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
            }
            if seen is not None:
                seen.append(headers | {"": first})
            writer.write(reply(first.split()[1].partition("?")[0], headers))
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(one, "127.0.0.1")
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@contextlib.asynccontextmanager
async def routed(**urls: str) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app([Cell(name, url) for name, url in urls.items()], host="127.0.0.1")
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=30) as client:
            yield client


@pytest.mark.parametrize("name", STRANGE)
async def test_an_answer_of_all_cells_names_one_that_gives_none(name: str) -> None:
    """Where no cell gives one it is 503, and never an error of the router's own."""
    async with served(proper) as good, served(STRANGE[name]) as strange:
        async with routed(good=good, strange=strange) as client:
            for path in MERGED:
                answer = await client.get(path)
                assert answer.status_code == 200, (path, answer.text)
                if path not in {"/v1/cells", "/readyz"}:
                    assert answer.json()["unavailable"] == ["strange"], (path, answer.text)
            assert (await client.get("/metrics")).status_code == 200
        async with routed(strange=strange) as client:
            for path in MERGED:
                answer = await client.get(path)
                assert answer.status_code == 503, (path, answer.text)


@pytest.mark.parametrize("status", ["401 Unauthorized", "409 Conflict", "422 Unprocessable"])
async def test_a_refusal_of_one_cell_names_it_and_those_that_did_as_they_were_asked(status: str) -> None:
    """A policy version, say, which then is in some of them. A refusal of all is passed on as it is."""

    def refused(path: str, _: dict[str, str]) -> bytes:
        return told(b'{"detail": "a reason", "title": "no"}', status)

    async with served(proper) as good, served(refused) as bad:
        async with routed(good=good, bad=bad) as client:
            answer = await client.get("/v1/runs")
            assert (answer.status_code, answer.json()["detail"]) == (
                int(status[:3]),
                "cell bad refuses it, and good did not: a reason",
            )
        async with routed(bad=bad, worse=bad) as client:
            answer = await client.get("/v1/runs")
            assert (answer.status_code, answer.json()) == (int(status[:3]), {"detail": "a reason", "title": "no"})


@pytest.mark.parametrize("name", STRANGE)
async def test_a_new_run_goes_to_a_cell_that_answers(name: str) -> None:
    async with served(proper) as good, served(STRANGE[name]) as strange, routed(good=good, strange=strange) as client:
        for run in range(8):
            answer = await client.post("/v1/batches", json={"run_id": f"r{run}", "batch_id": "b", "groups": []})
            assert answer.status_code in {200, 502, 503}, answer.text
            if answer.status_code == 200:
                assert answer.headers["x-prorl-cell"] == "good"
            else:
                assert "strange" in answer.text


async def test_headers_of_one_connection_stay_there() -> None:
    """Those that `Connection` names too, which else would reach a cell as if they were for it."""
    seen: list[dict[str, str]] = []

    def reply(path: str, headers: dict[str, str]) -> bytes:
        return told(b"{}", extra="Connection: close, X-Private\r\nX-Private: 1\r\nX-Public: 2\r\n")

    async with served(reply, seen) as cell, routed(only=cell) as client:
        sent = {"Connection": "X-Mine, keep-alive", "X-Mine": "1", "Proxy-Connection": "a", "TE": "b", "X-Other": "2"}
        answer = await client.get("/openapi.json", headers=sent)
    assert seen[-1]["x-other"] == "2"
    assert {"x-mine", "proxy-connection", "te"}.isdisjoint(seen[-1])
    assert answer.headers["x-public"] == "2"
    assert "x-private" not in answer.headers


@pytest.mark.parametrize("bounded", [True, False])
async def test_cells_that_send_a_run_to_each_other_end_a_request(
    monkeypatch: pytest.MonkeyPatch, bounded: bool
) -> None:
    """The control follows them for as long as they send it on."""

    def to(name: str) -> Reply:
        body = json.dumps({"cell": name}).encode()
        return lambda path, _: told(body) if path.endswith("/cell") else told(body, "421 Misdirected Request")

    if not bounded:
        monkeypatch.setattr(forwarding, "FOLLOWED", 10**9)
    async with served(to("b")) as a, served(to("a")) as b, routed(a=a, b=b) as client:
        if not bounded:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await client.get("/v1/runs/r")
            return
        answer = await client.get("/v1/runs/r")
    assert answer.status_code == 508
    assert "'r'" in answer.json()["detail"]


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PATCH", "TRACE", "PROPFIND", "x"])
async def test_methods_that_an_api_does_not_have_are_refused(method: str) -> None:
    async with served(proper) as good, routed(good=good) as client:
        for path in ("/v1/runs", "/v1/runs/r", "/v1/batches", "/metrics", "/v1/pools/p/policy"):
            answer = await client.request(method, path)
            allowed = {200, 405, 503} if method == "HEAD" else {405}
            assert answer.status_code in allowed, (path, answer.status_code, answer.text)
