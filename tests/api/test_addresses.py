"""Backends of tenants: which addresses they may add, and that one address is never in the pools of two of them.

Controls: the same call of the operator's, and of the only user of a service without tokens, is taken.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from api.config import ApiSettings, settings_from
from api.listeners import own_addresses
from api.service import Service
from api.tokens import load_tenants
from prorl_mq.duties.intake import Intake
from prorl_mq.errors import AddressRefused, ConfigurationError, Conflict
from prorl_mq.schema.codec import encode
from prorl_mq.schema.ids import RunRef
from prorl_mq.schema.intake import IntakeAnswer
from prorl_mq.service.backends import Registrar, Rights
from prorl_mq.store import pools
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.pools import BackendInfo
from prorl_mq.store.server.connection import RedisSettings, ask, connect
from prorl_mq.store.store import Store
from tests.api.service import api, compat

pytestmark = pytest.mark.anyio
TOKENS = {name: hashlib.sha256(f"token-of-{name}".encode()).digest() for name in ("ann", "bob", "ops")}
ALL_OPEN = ("0.0.0.0/0", "[::/0]")  # what no tenant reaches stays closed
BACKENDS = {"ann": ALL_OPEN, "bob": ("192.0.2.0/24:8000-8999", "127.0.0.1:8000", "localhost:9000"), "ops": ("any",)}
BOTH = Rights(declared={"ann": ALL_OPEN, "bob": ALL_OPEN}, closed=True)
NODE = "http://192.0.2.7:8000"
UNREACHED = [
    "http://127.0.0.1:8000", "http://localhost:8000", "http://[::1]:8000", "http://[::ffff:127.0.0.1]:8000",
    "http://169.254.169.254", "http://[fe80::1]:8000", "http://0.0.0.0:8000", "http://[fd00:ec2::254]",
]  # fmt: skip


@pytest.fixture
async def store(settings: RedisSettings) -> AsyncIterator[Store]:
    redis, waiting = connect(settings), connect(settings)
    yield Store(redis, Keys(settings.namespace), name="test", waiting=waiting)
    await redis.aclose()
    await waiting.aclose()


async def add(client: httpx.AsyncClient, name: str, address: str, pool: str = "policy") -> httpx.Response:
    headers = {"Authorization": f"Bearer token-of-{name}"}
    return await client.post(f"/v1/pools/{pool}/backends", json={"address": address}, headers=headers)


async def test_a_tenant_adds_no_address_of_the_services_own_hosts(settings: RedisSettings) -> None:
    async with api(settings, tokens=TOKENS, backends=BACKENDS) as client:
        for address in UNREACHED:
            answer = await add(client, "ann", address)
            assert (answer.status_code, answer.json()["type"]) == (403, "urn:prorl-mq:problem:address-refused"), address
            assert (await add(client, "ops", address)).status_code == 201, address
        assert (await add(client, "ann", NODE)).status_code == 201


async def test_a_tenant_for_whom_nothing_is_declared_has_the_operators_backends_alone(settings: RedisSettings) -> None:
    redis = connect(settings)
    store = Store(redis, Keys(settings.namespace), name="test")
    try:
        await Registrar().add(store, "ann:policy", BackendInfo(address="http://127.0.0.1:8000"))
        for backends in ({}, {"ann": None}, {"ann": ()}):
            async with api(settings, tokens=TOKENS, backends=backends) as client:
                for address in (NODE, "http://gpu7.cluster:8000", UNREACHED[1]):
                    answer = await add(client, "ann", address)
                    assert answer.status_code == 403, address
                    assert "no addresses are declared for tenant ann" in answer.json()["detail"]
                assert (await add(client, "ann", NODE, pool="other")).status_code == 403
                assert (await add(client, "ann", "http://127.0.0.1:8000")).status_code in {200, 201}, (
                    "it is in its pool"
                )
    finally:
        await redis.aclose()


async def test_the_only_user_of_a_service_without_tokens_adds_any(settings: RedisSettings) -> None:
    async with api(settings) as client:
        for address in UNREACHED:
            answer = await client.post("/v1/pools/policy/backends", json={"address": address})
            assert answer.status_code == 201, address


async def test_what_the_operator_declared_is_what_a_tenant_may_add(settings: RedisSettings) -> None:
    async with api(settings, tokens=TOKENS, backends=BACKENDS) as client:
        wanted = [NODE, "http://127.0.0.1:8000", "http://192.0.2.7:80", "http://198.51.100.7:8000",
                  "http://127.0.0.1:8001", "http://localhost:9000"]  # fmt: skip
        answers = [(await add(client, "bob", address)).status_code for address in wanted]
    assert answers == [201, 201, 403, 403, 403, 403], "a name opens no loopback address, whoever declared it"


async def test_a_host_without_an_address_is_refused(settings: RedisSettings) -> None:
    async with api(settings, tokens=TOKENS, backends=BACKENDS) as client:
        answer = await add(client, "ann", "http://no-such-host.invalid:8000")
        assert (answer.status_code, "no address" in answer.json()["detail"]) == (403, True)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.9"])
async def test_a_tenant_adds_none_of_the_services_listeners(settings: RedisSettings, host: str) -> None:
    mine = next((each for each in own_addresses() if not each.startswith("127.")), "") if host == "0.0.0.0" else host
    if not mine:
        pytest.skip("this host has no address but loopback")
    elsewhere = RedisSettings(url="redis://198.51.100.6:6380")
    registrar = api_of(host, elsewhere)
    redis = connect(settings)
    store = Store(redis, Keys(settings.namespace), name="test")
    try:
        for address in (f"http://{mine}:8123", "http://198.51.100.6:6380"):
            with pytest.raises(AddressRefused):
                await registrar.add(store, "ann:policy", BackendInfo(address=address))
        for address in (f"http://{mine}:8124", "http://198.51.100.6:6381"):
            assert await registrar.add(store, "ann:policy", BackendInfo(address=address)) == "joined"
    finally:
        await redis.aclose()


def api_of(host: str, redis: RedisSettings) -> Registrar:
    """That of an API that listens there; it is not started."""
    from api.app import create_app
    from api.config import ApiSettings

    registrar: Registrar = create_app(
        ApiSettings(redis=redis, host=host, port=8123, tokens=TOKENS, backends=BACKENDS)
    ).state.service.registrar
    return registrar


async def test_an_address_is_in_the_pools_of_one_tenant(settings: RedisSettings) -> None:
    async with api(settings, tokens=TOKENS, backends=dict.fromkeys(TOKENS, ALL_OPEN)) as client:
        assert (await add(client, "ann", NODE)).status_code == 201
        assert (await add(client, "ann", NODE, pool="other")).status_code == 201
        for address in (NODE, "http://192.0.2.7:8000/v1", "http://[::ffff:192.0.2.7]:8000"):
            answer = await add(client, "bob", address)
            assert answer.status_code == 409
            assert answer.json()["detail"] == (
                f"backend {address!r} cannot join: its address is in use in another tenant's pool"
            )
        shown = await client.get("/v1/pools", headers={"Authorization": "Bearer token-of-bob"})
        assert shown.json() == {"pools": []}, "it has not joined for a moment, either"
        assert (await add(client, "bob", "http://192.0.2.7:8001")).status_code == 201
        headers = {"Authorization": "Bearer token-of-ann"}
        for pool in ("policy", "other"):
            await client.delete(f"/v1/pools/{pool}/backends", params={"address": NODE}, headers=headers)
        assert (await add(client, "bob", NODE)).status_code == 201


async def test_of_two_tenants_at_once_at_most_one_has_the_address(store: Store) -> None:
    registrar = Registrar(BOTH)
    for number in range(8):
        about = BackendInfo(address=f"http://192.0.2.7:{8000 + number}")
        both = [registrar.add(store, f"{tenant}:policy", about) for tenant in ("ann", "bob")]
        done = await asyncio.gather(*both, return_exceptions=True)
        assert all(each == "joined" or isinstance(each, Conflict) for each in done)
        holders = [tenant for tenant in ("ann", "bob") if await _has(store, f"{tenant}:policy", about.address)]
        assert len(holders) <= 1


async def _has(store: Store, pool: str, address: str) -> bool:
    return any(each.address == address for each in await pools.listing(store, pool))


async def test_the_operator_takes_an_address_back_from_a_tenant(store: Store) -> None:
    tenants, operator = Registrar(BOTH), Registrar()
    about = BackendInfo(address=NODE)
    assert await tenants.add(store, "ann:policy", about) == "joined"
    assert await operator.add(store, "default:policy", about) == "joined"
    assert not await _has(store, "ann:policy", NODE)
    with pytest.raises(Conflict):
        await tenants.add(store, "ann:policy", about)
    assert await operator.add(store, "ann:policy", about) == "joined", "an operator may share one"
    assert await _has(store, "default:policy", NODE)


async def test_a_tenant_describes_what_the_operator_added_to_its_pool(store: Store) -> None:
    about = BackendInfo(address="http://127.0.0.1:8000", limit=8)
    await Registrar().add(store, "ann:policy", about)
    tenants = Registrar(Rights(closed=True))
    assert await tenants.add(store, "ann:policy", about) == "known"
    with pytest.raises(AddressRefused):
        await tenants.add(store, "ann:other", about)


async def test_the_direct_path_has_the_same_rules(store: Store) -> None:
    async def said(tenant: str, registrar: Registrar | None) -> int:
        run = RunRef(f"{tenant}:r")
        body = {"type": "backend", "reply": "x", "pool": "policy", "address": "http://127.0.0.1:8000"}
        await ask(store.redis, "SADD", store.keys.intakes, run)
        intake = Intake(store, registrar=registrar)
        await intake._look()
        answer: IntakeAnswer = await intake.answer(run, "1-0", encode(body))
        return answer.status

    user = f"{store.keys.namespace}-trainer-ann"
    await ask(store.redis, "ACL", "SETUSER", user, "on", "nopass", "+ping")
    try:
        assert await said("ann", None) == 403, "a tenant with a Redis user of its own"
        assert await said("ann", Registrar(Rights(declared={"ann": ("any",)}))) == 200
    finally:
        await ask(store.redis, "ACL", "DELUSER", user)
    assert await said("default", Registrar(Rights(closed=True))) == 403
    assert await said("default", None) == 200


async def test_the_compatible_routes_beyond_loopback_have_the_rules_of_their_tenant(settings: RedisSettings) -> None:
    flags = ["--redis", "redis://h", "--compat", "prorl", "--host", "192.0.2.9", "--compat-tenant", "lab",
             "--compat-allow", "10.0.0.0/8,fd00:1::/32,127.0.0.1/32,::1,169.254.0.0/16"]  # fmt: skip
    found = settings_from(flags, {})
    assert (found.backends, found.tokens) == ({"lab": ("10.0.0.0/8", "[fd00:1::/32]")}, {})
    assert settings_from(flags[:4], {}).backends == {}
    async with compat(settings) as client:
        assert (await client.post("/add_llm_server", json={"address": "http://127.0.0.1:8000"})).status_code == 200


@pytest.mark.parametrize("own", [True, False])
async def test_the_token_of_this_machine_closes_nothing_to_trainers_without_http(own: bool, tmp_path: Path) -> None:
    """Who starts the service for himself is the operator, under whatever name; a tokens file is the control."""
    made = ApiSettings(redis=RedisSettings(url="redis://h"), tokens=TOKENS, state_dir=tmp_path if own else None)
    assert (Service(made).registrar.rights.of("lab", has_user=False) is None) is own


def test_the_tokens_file_declares_backends(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text(
        '[tenants.ann]\ntoken = "token-of-ann"\n'
        '[tenants.bob]\ntoken = "token-of-bob"\n'
        'backends = ["10.1.0.0/16:8000-8999", "*.gpu.cluster", "[fd00:1::/32]"]\n'
        '[tenants.ops]\ntoken = "token-of-ops"\nbackends = ["any"]\n'
    )
    path.chmod(0o600)
    assert load_tenants(path).backends == {
        "ann": None, "bob": ("10.1.0.0/16:8000-8999", "*.gpu.cluster", "[fd00:1::/32]"), "ops": ("any",),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("backends", "said"),
    [('["10.0.0.1/8"]', "10.0.0.1/8"), ('["http://gpu7:8000"]', "no address"), ('["any", "gpu7"]', "stands alone"),
     ('["gpu7:0"]', "ports"), ('"any"', "array")],
)  # fmt: skip
def test_what_declares_no_addresses_is_named(tmp_path: Path, backends: str, said: str) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text(f'[tenants.ann]\ntoken = "token-of-ann"\nbackends = {backends}\n')
    path.chmod(0o600)
    with pytest.raises(ConfigurationError, match=r"tokens file") as caught:
        load_tenants(path)
    assert said in str(caught.value)
    assert "token-of-ann" not in str(caught.value)
