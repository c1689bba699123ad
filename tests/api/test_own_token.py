"""A service on loopback whose operator gave no tokens: its own user enters, other users of the machine do not.

Controls: with `--open`, which is that guard taken out, the same requests are carried out.
"""

import contextlib
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from api.app import create_app
from api.compat.app import create_app as create_compat_app
from api.config import settings_from
from api.routes import OPERATIONS
from api.serving import guarded_by_own_token
from prorl_mq import local_token
from prorl_mq.client import AsyncClient
from prorl_mq.errors import ConfigurationError, ServiceError
from prorl_mq.store.server.connection import RedisSettings
from tests.api.process import spawn, started
from tests.api.service import announce_source

PLACES = {"pool": "policy", "run": "r", "id": "r:b"}
V1 = {"start": "POST", "stop": "POST", "status": "GET", "add_llm_server": "POST", "clear_llm_server": "POST",
      "cancel": "POST", "process": "POST"}  # fmt: skip


@contextlib.asynccontextmanager
async def served(settings: RedisSettings, *flags: str) -> AsyncIterator[httpx.AsyncClient]:
    """What the command serves with these flags, in this process."""
    given = settings_from(["--redis", settings.url, "--namespace", settings.namespace, *flags], {})
    guarded, _ = guarded_by_own_token(given)
    app = create_app(guarded) if guarded.compat is None else create_compat_app(guarded)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as client:
            yield client


@pytest.mark.anyio
async def test_another_user_of_the_machine_reaches_nothing_without_the_token(
    settings: RedisSettings, tmp_path: Path
) -> None:
    backend = {"address": "http://10.9.9.9:8000"}
    async with served(settings, "--state-dir", str(tmp_path)) as client:
        for each in OPERATIONS:
            answer = await client.request(each.method, each.path.format(**PLACES), json={})
            assert (answer.status_code == 401) is not each.public, each.path
        for wrong in ("Bearer wrong-token", f"Basic {(tmp_path / 'token').read_text()}"):
            assert (await client.get("/v1/runs", headers={"Authorization": wrong})).status_code == 401
        own = {"Authorization": f"Bearer {(tmp_path / 'token').read_text()}"}
        assert (await client.get("/v1/runs", headers=own)).json() == {"runs": []}
        assert (await client.post("/v1/pools/p/backends", json=backend, headers=own)).status_code == 201
        elsewhere = await client.get("/v1/runs", headers=own | {"Host": "evil.test"})
        assert elsewhere.status_code == 421, "names are checked beside the token"
    async with served(settings, "--open") as client:
        assert (await client.get("/v1/runs")).json() == {"runs": []}
        assert (await client.post("/v1/pools/other/backends", json=backend)).status_code == 201


@pytest.mark.anyio
async def test_a_client_of_the_first_release_has_the_token_in_its_address(
    settings: RedisSettings, tmp_path: Path
) -> None:
    await announce_source(settings)
    compat = ("--compat", "prorl")
    async with served(settings, *compat, "--state-dir", str(tmp_path)) as client:
        token = (tmp_path / "token").read_text()
        for name, method in V1.items():
            for path in (f"/{name}", f"/clients/me/{name}", f"/token/wrong-one/{name}", f"/token/{name}", "/token//"):
                assert (await client.request(method, path, json={})).status_code == 401, path
        assert (await client.post("/start", headers={"Authorization": f"Bearer {token}"})).status_code == 200
        assert (await client.post(f"/token/{token}/clients/me/start")).status_code == 200
        assert (await client.get(f"/token/{token}/clients/me/status")).status_code == 200
        assert (await client.get(f"/token/{token}/none")).status_code == 404
        assert (await client.get("/healthz")).status_code == 200
    async with served(settings, *compat, "--open") as client:
        assert (await client.post("/clients/other/start")).status_code == 200


@pytest.mark.anyio
async def test_with_a_tokens_file_such_a_client_is_the_tenant_of_its_token(
    settings: RedisSettings, tmp_path: Path
) -> None:
    await announce_source(settings)
    tokens = tmp_path / "tokens.toml"
    tokens.write_text('[tenants.ann]\ntoken = "secret/of+ann"\n[tenants.bob]\ntoken = "secret-of-bob"\n')
    tokens.chmod(0o600)
    async with served(settings, "--compat", "prorl", "--tokens", str(tokens)) as client:
        assert (await client.post("/start")).status_code == 401
        assert (await client.post("/token/secret%2Fof+ann/clients/me/start")).status_code == 200
        assert (await client.post("/token/secret%2Fof+ann/clients/me/start")).status_code == 400, "it runs already"
        assert (await client.get("/token/secret-of-bob/clients/me/status")).status_code == 503, "and is not bob's"


@pytest.mark.anyio
async def test_clients_find_the_token_and_find_the_next_one_when_the_service_has_started_again(
    settings: RedisSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    async with started(settings, "--port", "0", "--state-dir", str(state)) as (_, url):
        monkeypatch.setenv("PRORL_STATE", str(tmp_path))
        async with AsyncClient(url, patience_s=5) as client:
            with pytest.raises(ServiceError, match=f"{tmp_path}/token is not its token: set PRORL_STATE"):
                await client.runs()
            monkeypatch.setenv("PRORL_TOKEN", (state / "token").read_text())
            assert await client.runs() == []
        monkeypatch.delenv("PRORL_TOKEN")
        monkeypatch.setenv("PRORL_STATE", str(state))
        async with AsyncClient(url, patience_s=5) as client, AsyncClient(url, token="given-one", patience_s=5) as wrong:
            assert await client.runs() == []
            with pytest.raises(ServiceError, match="the bearer token is unknown"):
                await wrong.runs()  # what was given is not replaced
            client._door._token = "of-an-earlier-start"  # type: ignore[attr-defined]
            assert await client.runs() == []


@pytest.mark.anyio
async def test_clients_find_the_address_that_the_service_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is named goes first; where nothing runs it is the usual port, at which the next service will be."""

    async def asked(url: str | None = None) -> str:
        async with AsyncClient(url) as client:
            return client.url

    monkeypatch.delenv("PRORL_URL", raising=False)
    monkeypatch.setenv(local_token.STATE, str(tmp_path))
    assert await asked() == "http://127.0.0.1:8080"
    (tmp_path / "address").write_text("http://127.0.0.1:4321")
    assert await asked() == "http://127.0.0.1:4321"
    monkeypatch.setenv("PRORL_URL", "http://node:1")
    assert await asked() == "http://node:1"
    assert await asked("http://node:2") == "http://node:2"


def test_no_address_but_this_machines_gets_the_token(tmp_path: Path) -> None:
    made = local_token.made(tmp_path)
    for url in ("http://127.0.0.1:8080", "http://localhost:1/x", "http://[::1]:80", "http://127.9.9.9"):
        assert local_token.found(url, tmp_path) == made, url
    for url in (
        "http://10.0.0.1:8080",
        "http://localhost.evil.test",
        "http://evil.test:8080",
        "/a/file",
        "http://[::2]",
    ):
        assert local_token.found(url, tmp_path) is None, url


def test_the_token_is_its_owners_and_every_process_of_the_directory_has_the_same(tmp_path: Path) -> None:
    state = tmp_path / "new" / "state"
    made = local_token.made(state)
    assert len(made) >= 43
    assert local_token.made(state) == made
    assert stat.S_IMODE((state / "token").stat().st_mode) == 0o600
    assert [each.name for each in state.iterdir()] == ["token"]
    with local_token.left(state, wanted=True) as other:
        assert other not in {"", made}
    with local_token.left(state, wanted=False) as none:
        assert (none, list(state.iterdir())) == ("", [])


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o602])
def test_a_token_that_others_may_know_is_not_used(tmp_path: Path, mode: int) -> None:
    local_token.made(tmp_path)
    (tmp_path / "token").chmod(mode)
    with pytest.raises(ConfigurationError, match="not this user's alone: remove it"):
        local_token.made(tmp_path)


def test_a_token_that_was_put_there_is_not_used(tmp_path: Path) -> None:
    """A link to a file of this user's, and an empty file, which anybody would know."""
    (tmp_path / "else").write_text("known-to-others")
    (tmp_path / "else").chmod(0o600)
    (tmp_path / "token").symlink_to("else")
    with pytest.raises(ConfigurationError, match="cannot be kept"):
        local_token.made(tmp_path)
    (tmp_path / "token").unlink()
    (tmp_path / "token").touch(0o600)
    with pytest.raises(ConfigurationError, match="is none: remove it"):
        local_token.made(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file to another user")
def test_a_token_of_another_user_is_not_used(tmp_path: Path) -> None:
    local_token.made(tmp_path)
    os.chown(tmp_path / "token", 65534, -1)
    with pytest.raises(ConfigurationError, match="not this user's alone"):
        local_token.made(tmp_path)


@pytest.mark.parametrize(
    ("flags", "asks"),
    [
        ([], True),
        (["--compat", "prorl"], True),
        (["--compat", "prorl", "--compat-tenant", "lab"], True),
        (["--host", "::1"], True),
        (["--open"], False),
        (["--uds", "/tmp/api.sock"], False),
    ],
)
def test_loopback_asks_for_a_token_and_a_socket_of_its_owners_for_none(flags: list[str], asks: bool) -> None:
    made = settings_from(["--redis", "redis://h", "--state-dir", "/s", *flags], {})
    assert made.state_dir == (Path("/s") if asks else None)


@pytest.mark.anyio
async def test_open_and_tokens_exclude_each_other(tmp_path: Path) -> None:
    process = await spawn("--redis", "redis://h", "--open", "--tokens", str(tmp_path / "t.toml"))
    _, said = await process.communicate()
    assert (process.returncode, b"leave one of them out" in said) == (2, True)
