"""Tokens: who a request belongs to, and what it may see."""

import hashlib
from pathlib import Path

import httpx
import pytest

from api.routes import OPERATIONS
from api.tokens import load_tenants, load_tokens
from prorl_mq.errors import ConfigurationError
from prorl_mq.store.server.connection import RedisSettings
from tests.api.service import announce_source, api, batch

pytestmark = pytest.mark.anyio
TOKENS = {name: hashlib.sha256(f"token-of-{name}".encode()).digest() for name in ("ann", "bob")}


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer token-of-{name}"}


@pytest.mark.parametrize("header", [None, "Bearer wrong", "Basic token-of-ann", "Bearer", "Bearer tökén"])
async def test_a_request_without_a_known_token_is_refused(settings: RedisSettings, header: str | None) -> None:
    async with api(settings, tokens=TOKENS) as client:
        headers = {b"authorization": header.encode("latin-1")} if header else {}
        answer = await client.get("/v1/jobs/a:b:1", headers=headers)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert "token-of" not in answer.text


async def test_a_tenant_never_sees_the_things_of_another(settings: RedisSettings) -> None:
    await announce_source(settings)
    async with api(settings, tokens=TOKENS) as client:
        assert (await client.post("/v1/batches", json=batch(), headers=bearer("ann"))).status_code == 202
        looks = ["/v1/batches/run:batch", "/v1/jobs/run:batch-0:0", "/v1/runs/run/results"]
        assert [(await client.get(path, headers=bearer("ann"))).status_code for path in looks] == [200] * 3
        assert [(await client.get(path, headers=bearer("bob"))).status_code for path in looks] == [404] * 3
        cancels = ["jobs/run:batch-0:0", "groups/run:batch-0", "batches/run:batch", "runs/run"]
        answers = [await client.post(f"/v1/{path}/cancel", headers=bearer("bob")) for path in cancels]
        assert [answer.status_code for answer in answers] == [404] * 4
        ack = await client.post("/v1/runs/run/ack", json={"cursors": []}, headers=bearer("bob"))
        assert ack.status_code == 404


async def test_a_token_that_reads_only_sees_all_of_its_tenant_and_changes_nothing(settings: RedisSettings) -> None:
    await announce_source(settings)
    looker = {"ann": hashlib.sha256(b"token-of-anns-looker").digest()}
    async with api(settings, tokens=TOKENS, readers=looker) as client:
        reads = bearer("anns-looker")
        assert (await client.post("/v1/batches", json=batch(), headers=bearer("ann"))).status_code == 202
        kept = [await client.get(f"/v1/{path}", headers=bearer("ann")) for path in ("runs/run", "groups/run:batch-0")]
        for each in OPERATIONS:
            if each.method != "GET":
                path = each.path.format(id="run", run="run", pool="policy")
                answer = await client.request(each.method, path, json={}, headers=reads)
                assert (answer.status_code, answer.json()["type"][-10:]) == (403, "reads-only"), each.path
        seen = [await client.get(f"/v1/{path}", headers=reads) for path in ("runs/run", "groups/run:batch-0")]
        assert [each.json() for each in seen] == [each.json() for each in kept]
        told = [(await client.get("/v1/access", headers=bearer(name))).json() for name in ("ann", "anns-looker")]
        assert told == [{"tenant": "ann", "may": "act"}, {"tenant": "ann", "may": "read"}]


async def test_probes_are_open_and_metrics_are_where_only_this_machine_asks(settings: RedisSettings) -> None:
    async def statuses(client: httpx.AsyncClient, headers: dict[str, str]) -> list[int]:
        paths = ("/healthz", "/readyz", "/openapi.json", "/docs", "/metrics")
        return [(await client.get(path, headers=headers)).status_code for path in paths]

    async with api(settings, tokens=TOKENS) as client:
        assert await statuses(client, {}) == [200] * 5
    async with api(settings, tokens=TOKENS, host="192.0.2.1") as client:
        assert await statuses(client, {}) == [200, 200, 200, 200, 401]
        assert await statuses(client, bearer("bob")) == [200] * 5


def test_a_tokens_file_may_be_toml_or_json(tmp_path: Path) -> None:
    toml, js = tmp_path / "t.toml", tmp_path / "t.json"
    toml.write_text('[tenants.ann]\ntoken = "token-of-ann"\n[tenants.bob]\ntoken = "token-of-bob"\n')
    js.write_text('{"tenants": {"ann": {"token": "token-of-ann"}, "bob": {"token": "token-of-bob"}}}')
    for each in (toml, js):
        each.chmod(0o600)
    assert load_tokens(toml) == load_tokens(js) == TOKENS
    toml.write_text('[tenants.ann]\ntoken = "token-of-ann"\nread_token = "token-of-bob"\n')
    assert load_tenants(toml).readers == {"ann": TOKENS["bob"]}


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "tenants"), ('[tenants.a]\ntokn = "12345678"', "did you mean 'token'"), ('[tenants.a]\ntoken = "x"', "token"),
     ('[tenants.a]\ntoken="12345678"\n[tenants.b]\ntoken="12345678"', "one token"), ("[tenants", "wrong"),
     ('[tenants.a]\ntoken="12345678"\nread_token="12345678"', "one token"),
     ('[tenants."a:b"]\ntoken="12345678"', "wrong")],
)  # fmt: skip
def test_a_wrong_tokens_file_is_explained_without_its_tokens(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "t.toml"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ConfigurationError) as error:
        load_tokens(path)
    assert said in str(error.value)
    assert "12345678" not in str(error.value)


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o620])
def test_a_tokens_file_that_others_may_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "t.toml"
    path.write_text('[tenants.ann]\ntoken = "token-of-ann"\n')
    path.chmod(mode)
    with pytest.raises(ConfigurationError, match="chmod 600 it"):
        load_tokens(path)
    path.chmod(0o600)
    assert list(load_tokens(path)) == ["ann"]
