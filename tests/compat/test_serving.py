"""Where the routes are served, and to whom."""

import httpx
import pytest

from api.config import CompatSettings, settings_from
from prorl_mq.errors import ConfigurationError
from prorl_mq.store.server.connection import RedisSettings
from tests.api.process import started

FLAGS = ["--redis", "redis://h", "--compat", "prorl"]


def test_on_loopback_they_serve_the_default_tenant_on_their_own_port() -> None:
    made = settings_from(FLAGS, {})
    assert (made.port, made.host, made.compat) == (8006, "127.0.0.1", CompatSettings())
    assert settings_from(["--redis", "redis://h"], {}).port == 8080


@pytest.mark.parametrize("given", [[], ["--compat-tenant", "lab"], ["--compat-allow", "10.0.0.0/8"]])
def test_elsewhere_they_need_a_tenant_and_addresses(given: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="needs --compat-tenant and --compat-allow"):
        settings_from([*FLAGS, "--host", "0.0.0.0", *given], {})
    both = ["--compat-tenant", "lab", "--compat-allow", "10.1.0.0/16, 10.2.3.4"]
    made = settings_from([*FLAGS, "--host", "0.0.0.0", *both], {}).compat
    assert made == CompatSettings(tenant="lab", allowed=("10.1.0.0/16", "10.2.3.4"))  # type: ignore[arg-type]


def test_wrong_settings_are_told_together() -> None:
    flags = ["--compat-allow", "10.1.0.1/16", "--compat-tenant", "a:b", "--compat-timeout", "0"]
    with pytest.raises(ConfigurationError) as error:
        settings_from([*FLAGS, *flags], {})
    assert len(str(error.value).splitlines()) == 3


@pytest.mark.parametrize(
    ("address", "served"),
    [("10.1.2.3", True), ("::ffff:10.1.2.3", True), ("10.2.2.3", False), ("fe80::1%eth0", False), (None, True)],
)
def test_an_address_is_served_if_the_list_has_it(address: str | None, served: bool) -> None:
    assert CompatSettings(allowed=("10.1.0.0/16",)).admits(address) == served


@pytest.mark.anyio
async def test_a_caller_has_no_other_address_than_its_connection(settings: RedisSettings) -> None:
    """Programs of the service's host could call as any machine on the list."""
    flags = ("--compat", "prorl", "--port", "0", "--compat-allow", "10.0.0.0/8")
    async with started(settings, *flags) as (_, url), httpx.AsyncClient(base_url=url, timeout=60) as client:
        for headers in ({}, {"X-Forwarded-For": "10.0.0.9"}, {"Forwarded": "for=10.0.0.9"}):
            answer = await client.post("/start", headers=headers)
            assert (answer.status_code, "127.0.0.1 is not among" in answer.json()["detail"]) == (403, True)


@pytest.mark.anyio
async def test_the_command_serves_them(settings: RedisSettings) -> None:
    async with (
        started(settings, "--compat", "prorl", "--port", "0") as (process, url),
        httpx.AsyncClient(base_url=url, timeout=60) as client,
    ):
        assert (await client.post("/start")).json() == {"status": "Server started successfully"}
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/v1/runs")).status_code == 404
        process.terminate()
        assert await process.wait() == 0
