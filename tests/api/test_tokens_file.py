"""A tokens file that is changed while the API runs: what was taken out opens nothing, and a wrong file nothing else."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from api import callers
from api.config import settings_from
from api.tokens import load_tenants
from prorl_mq.service.backends import Registrar
from prorl_mq.store.server import notices
from prorl_mq.store.server.connection import RedisSettings
from tests.api.service import announce_source, api, batch
from tests.api.test_waiting import service_of, waiting

pytestmark = pytest.mark.anyio
REDIS = ("--redis", "unix:///nowhere")


def write(path: Path, **tenants: str) -> None:
    """In place of the file, as an editor does."""
    lines = [f'[tenants.{name}]\ntoken = "token-of-{token}"\n' for name, token in tenants.items()]
    new = path.with_suffix(".new")
    new.write_text("".join(lines))
    new.chmod(0o600)
    new.replace(path)


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


def spoil(path: Path, wrong: str | None) -> None:
    """None: it is gone; `open`: others may read it."""
    if wrong is None:
        path.unlink()
    elif wrong == "open":
        path.chmod(0o644)
    else:
        path.write_text(wrong)


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer token-of-{name}"}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(callers, "LOOK_S", 0.02)
    made = tmp_path / "tokens.toml"
    write(made, ann="ann", bob="bob")
    return made


@pytest.fixture
async def client(settings: RedisSettings, path: Path) -> AsyncIterator[httpx.AsyncClient]:
    await announce_source(settings)
    found = load_tenants(path)
    async with api(settings, tokens=found.tokens, backends=found.backends, tokens_file=path) as each:
        yield each


async def until(client: httpx.AsyncClient, name: str, status: int) -> None:
    async with asyncio.timeout(20):
        while (await client.get("/v1/access", headers=bearer(name))).status_code != status:
            await asyncio.sleep(0.01)


async def test_a_revoked_token_is_refused_and_a_new_one_opens_what_the_old_one_did(
    client: httpx.AsyncClient, path: Path
) -> None:
    assert (await client.post("/v1/batches", json=batch(), headers=bearer("ann"))).status_code == 202
    write(path, ann="ann2", carl="carl")
    await until(client, "ann", 401)
    statuses = [
        (await client.get("/v1/batches/run:batch", headers=bearer(name))).status_code
        for name in ("ann", "bob", "ann2", "carl")
    ]
    assert statuses == [401, 401, 200, 404]


async def test_backends_that_a_tenant_may_add_change_with_the_file(client: httpx.AsyncClient, path: Path) -> None:
    registrar: Registrar = service_of(client).registrar
    assert registrar.rights.declared == {"ann": None, "bob": None}
    append(path, 'backends = ["10.0.0.1:8000"]\n')
    async with asyncio.timeout(20):
        while registrar.rights.declared != {"ann": None, "bob": ("10.0.0.1:8000",)}:
            await asyncio.sleep(0.01)
    assert registrar.rights.closed


async def test_what_waits_for_a_tenant_ends_with_its_token_and_no_other(client: httpx.AsyncClient, path: Path) -> None:
    for name in ("ann", "bob"):
        assert (await client.post("/v1/batches", json=batch(), headers=bearer(name))).status_code == 202
    address = "/v1/runs/run/results?wait=50"
    async with asyncio.TaskGroup() as tasks:
        gone, stays = (tasks.create_task(client.get(address, headers=bearer(name))) for name in ("ann", "bob"))
        watched = tasks.create_task(client.get("/v1/watch?seconds=3600", headers=bearer("ann")))
        await waiting(client, 2)
        async with asyncio.timeout(20):
            while len(service_of(client).callers.waiting) < 3:
                await asyncio.sleep(0.01)
        write(path, bob="bob")
        async with asyncio.timeout(20):
            assert [(await each).status_code for each in (gone, watched)] == [200, 200]
        assert (gone.result().json()["results"], stays.done()) == ([], False)
        assert (await client.post("/v1/runs/run/cancel", headers=bearer("bob"))).status_code == 202
        async with asyncio.timeout(40):
            assert len((await stays).json()["results"]) == 1


@pytest.mark.parametrize("wrong", ["[tenants", '[tenants.ann]\ntoken = "x"\n', None, "open"])
async def test_a_wrong_file_changes_nothing_and_is_reported_until_it_is_corrected(
    client: httpx.AsyncClient, path: Path, caplog: pytest.LogCaptureFixture, wrong: str | None
) -> None:
    service = service_of(client)
    with caplog.at_level(logging.ERROR, logger="prorl_mq.api"):
        spoil(path, wrong)
        async with asyncio.timeout(20):
            while not await notices.said(service.store, notices.TOKENS):
                await asyncio.sleep(0.01)
    told = await notices.said(service.store, notices.TOKENS)
    assert str(path) in told
    assert "the tokens that were read before still hold" in told
    assert "token-of" not in told
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "tokens file" in (await client.get("/readyz")).json()["warnings"][-1]
    assert (await client.get("/v1/access", headers=bearer("bob"))).status_code == 200
    write(path, ann="ann")
    await until(client, "bob", 401)
    assert service.callers.fault == ""
    assert not any("tokens" in each for each in (await client.get("/readyz")).json()["warnings"])


def test_a_file_that_is_being_written_is_not_read(path: Path) -> None:
    """Half of it may be a whole file of fewer tenants."""
    following = callers.Callers(settings_from([*REDIS, "--tokens", str(path)], {}))
    assert [following._look(path), following._look(path)] == [False, False]  # as it was read at the start
    whole = path.read_text()
    path.write_text(whole[: len(whole) // 2])
    assert following._look(path) is False  # changed since the look before
    path.write_text(whole)
    os.utime(path, ns=(1, 1))
    assert [following._look(path), following._look(path)] == [False, False]
    assert set(following.tokens) == {"ann", "bob"}


def test_the_command_follows_the_file_of_its_tokens(path: Path) -> None:
    argv = [*REDIS, "--tokens", str(path)]
    assert settings_from(argv, {}).tokens_file == path
    by_address = ["--compat", "prorl", "--compat-tenant", "ann"]
    assert settings_from([*argv, *by_address], {}).tokens_file is None
