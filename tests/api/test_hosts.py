"""Pages of elsewhere and a service without tokens: nothing that a browser sends for them is carried out.

Controls: the same requests are carried out for the service's own page, and where a token is needed.
"""

import contextlib
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from api.routes import OPERATIONS
from prorl_mq.store.server.connection import RedisSettings
from tests.api.process import started
from tests.api.service import announce_source, api, batch, compat

pytestmark = pytest.mark.anyio
OWN = [
    "localhost",
    "localhost:8080",
    "LOCALHOST:1",
    "127.0.0.1",
    "127.0.0.1:8080",
    "127.9.9.9:80",
    "[::1]",
    "[::1]:8080",
]
FOREIGN = [
    "evil.test", "evil.test:8080", "127.0.0.1.evil.test", "localhost.evil.test", "a.localhost:80", "10.0.0.7:8080",
    "node7", "127.1", "2130706433", "[::ffff:127.0.0.1]:80", "0.0.0.0:8080", "169.254.169.254", "user@localhost", "",
]  # fmt: skip
METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"]
PLACES = {"pool": "policy", "run": "r", "id": "r:b"}


@contextlib.asynccontextmanager
async def named(settings: RedisSettings, **options: object) -> AsyncIterator[httpx.AsyncClient]:
    async with api(settings, **options) as client:
        await announce_source(settings)
        yield client


async def test_a_name_of_elsewhere_that_leads_here_reaches_no_path_by_no_method(settings: RedisSettings) -> None:
    paths = {each.path.format(**PLACES) for each in OPERATIONS} | {"/", "/ui", "/ui/", "/ui/main.js", "/none"}
    async with named(settings) as client:
        for host in FOREIGN:
            answer = await client.get("/healthz", headers={"Host": host})
            assert answer.status_code == 421, host
        assert answer.json()["type"] == "urn:prorl-mq:problem:misdirected"
        for path in paths:
            for method in METHODS:
                answer = await client.request(method, path, headers={"Host": "evil.test:8080"})
                assert answer.status_code == 421, (method, path)
        for host in OWN:
            assert (await client.get("/healthz", headers={"Host": host})).status_code == 200, host


async def test_the_name_that_was_configured_is_served(settings: RedisSettings) -> None:
    async with named(settings, host="localhost") as client:
        assert (await client.get("/healthz", headers={"Host": "localhost:8080"})).status_code == 200
    async with named(settings, host="::1") as client:
        assert (await client.get("/healthz", headers={"Host": "[::1]:8080"})).status_code == 200
        assert (await client.get("/healthz", headers={"Host": "[::2]:8080"})).status_code == 421


async def test_two_hosts_are_none(settings: RedisSettings) -> None:
    async with named(settings) as client:
        twice = [("Host", "localhost"), ("Host", "evil.test")]
        assert (await client.get("/healthz", headers=twice)).status_code == 421


FORGED = [
    {"Origin": "http://evil.test"}, {"Origin": "null"}, {"Origin": "http://localhost:3000"}, {"Origin": "http://127.0.0.1"},
    {"Origin": ""}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://localhost", "Sec-Fetch-Site": "cross-site"},
]  # fmt: skip


async def test_a_page_of_elsewhere_changes_nothing_and_reads_nothing(settings: RedisSettings) -> None:
    async with named(settings) as client:
        assert (await client.post("/v1/batches", json=batch())).status_code == 202
        for headers in FORGED:
            for method, path in (("POST", "/v1/runs/run/cancel"), ("DELETE", "/v1/pools/policy/backends?address=http://a"),
                                 ("GET", "/v1/runs"), ("POST", "/v1/batches")):  # fmt: skip
                answer = await client.request(method, path, headers=headers)
                assert (answer.status_code, answer.json()["type"][-12:]) == (403, "foreign-page"), (headers, path)
        assert (await client.get("/v1/batches/run:batch")).json()["open"] == 1
        own = {"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"}
        assert (await client.post("/v1/runs/run/cancel", headers=own)).status_code == 202


async def test_a_link_of_another_site_leads_to_the_page(settings: RedisSettings) -> None:
    async with named(settings) as client:
        for path in ("/ui/", "/docs"):
            assert (await client.get(path, headers={"Sec-Fetch-Site": "cross-site"})).status_code == 200
        assert (await client.get("/uix", headers={"Sec-Fetch-Site": "cross-site"})).status_code == 403


async def test_with_tokens_a_service_is_called_by_any_name(settings: RedisSettings) -> None:
    """Trainers call it by the name of its node; a page has no token."""
    tokens = {"ann": hashlib.sha256(b"token-of-ann").digest()}
    async with named(settings, tokens=tokens, host="192.0.2.1") as client:
        for headers in ({"Host": "node7.cluster:8080"}, {"Host": "evil.test", "Origin": "http://evil.test"}):
            assert (await client.get("/healthz", headers=headers)).status_code == 200
            assert (await client.get("/v1/runs", headers=headers)).status_code == 401
            answer = await client.get("/v1/runs", headers={**headers, "Authorization": "Bearer token-of-ann"})
            assert answer.status_code == 200


async def test_the_compatible_routes_are_guarded_too(settings: RedisSettings) -> None:
    async with compat(settings) as client:
        for headers, status in (({"Host": "evil.test"}, 421), ({"Origin": "http://evil.test"}, 403), ({}, 200)):
            answer = await client.post("/add_llm_server", json={"address": "http://gpu7:8000"}, headers=headers)
            assert answer.status_code == status
            assert status == 200 or "detail" in answer.json()


async def test_a_unix_socket_is_called_by_any_name(settings: RedisSettings, tmp_path: Path) -> None:
    path = str(tmp_path / "api.sock")
    transport = httpx.AsyncHTTPTransport(uds=path)
    async with started(settings, "--uds", path), httpx.AsyncClient(transport=transport) as client:
        assert (await client.get("http://anything/v1/runs")).status_code == 200
        answer = await client.post("http://anything/v1/runs/r/cancel", headers={"Origin": "http://evil.test"})
        assert answer.status_code == 403
