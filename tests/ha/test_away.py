"""Replicated mode while a replica is away: the primary takes no writes, and processes start and show what is there."""

from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace
from redis.exceptions import ResponseError

from api import serving
from api.app import create_app
from api.config import ApiSettings, Durability
from api.service import Service
from prorl_mq.errors import ProrlError, RedisUnavailable
from prorl_mq.store import streams
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server import durability, fitness, replicas
from prorl_mq.store.server.connection import RedisSettings, ask, connect
from prorl_mq.store.store import Store
from tests.api.service import api

pytestmark = [pytest.mark.anyio, pytest.mark.process]


@pytest.fixture
async def alone(settings: RedisSettings) -> AsyncIterator[Store]:
    """A primary of a namespace in replicated mode that has lost its replica."""
    redis = connect(settings)
    store = Store(redis, Keys(settings.namespace), name="before", outage_ms=1_000)
    await store.open_epoch()
    await streams.prepare(store)
    await ask(redis, "HSET", store.keys.epoch, "acks", 1)
    try:
        yield store
    finally:
        await ask(redis, "CONFIG", "SET", "min-replicas-to-write", 0)
        await redis.aclose()


async def cut_off(store: Store) -> None:
    await ask(store.redis, "CONFIG", "SET", "min-replicas-to-write", 1)


@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize("mode", [Durability.REPLICATED, Durability.REPLICATED_SYNCED])
async def test_an_api_starts(
    alone: Store, settings: RedisSettings, monkeypatch: pytest.MonkeyPatch, mode: Durability, writes: bool
) -> None:
    """Where the mode is on. The control: it writes down again what is so already."""
    await replicas.switch(alone, 1, synced=mode is Durability.REPLICATED_SYNCED)
    await cut_off(alone)
    place = replace(settings, outage_ms=200)

    async def refused(*_: object, **__: object) -> None:
        raise ResponseError("NOREPLICAS Not enough good replicas to write.")

    monkeypatch.setattr(fitness, "syncs", refused)  # as the server would, after three seconds
    if writes:
        nothing = replicas.DurabilityMode(1, mode is not Durability.REPLICATED_SYNCED)

        async def unknown(_: Store) -> replicas.DurabilityMode:
            return nothing

        monkeypatch.setattr(replicas, "mode", unknown)
        with pytest.raises(RedisUnavailable, match="NOREPLICAS Not enough good replicas to write"):
            await serving._fit(ApiSettings(redis=place, durability=mode))
        return
    await serving._fit(ApiSettings(redis=place, durability=mode))
    app = create_app(ApiSettings(redis=place))
    async with app.router.lifespan_context(app):
        pass


async def test_an_api_that_lacks_its_streams_waits_for_a_replica(alone: Store) -> None:
    """The control of what a start needs not write."""
    await ask(alone.redis, "UNLINK", *streams.shared(alone.keys))
    await cut_off(alone)
    alone.outage_ms = 100
    with pytest.raises(RedisUnavailable, match="let a replica follow it again"):
        await streams.prepare(alone)


async def test_what_a_server_refuses_meanwhile_says_nothing_of_its_disk(alone: Store) -> None:
    """It is no server that lacks WAITAOF, as one would be told."""
    await cut_off(alone)
    with pytest.raises(Exception, match="NOREPLICAS") as raised:
        await fitness.syncs(alone.redis, alone.keys, replicas=0)
    assert not isinstance(raised.value, ProrlError)


@pytest.mark.parametrize("path", ["/metrics", "/v1/overview", "/v1/advice"])
@pytest.mark.parametrize("confirmed", [False, True])
async def test_metrics_and_the_overview_show_what_is_there(
    alone: Store, settings: RedisSettings, monkeypatch: pytest.MonkeyPatch, path: str, confirmed: bool
) -> None:
    """When a replica is away is when somebody looks. The control: they are read as what a trainer is handed is."""
    await cut_off(alone)
    monkeypatch.setattr(durability, "LEAST_S", 0.0)
    if confirmed:
        monkeypatch.setattr(Service, "looking", Service.store)
    async with api(settings, outage_ms=200) as client:
        assert (await client.get(path)).status_code == (503 if confirmed else 200)
        assert (await client.get("/v1/runs")).status_code == 503
