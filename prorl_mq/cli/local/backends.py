"""The backends that `up` was given join a pool with the operator's rights, and leave it with the service."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Sequence
from typing import Final

import httpx

from prorl_mq.cli.local.settings import POOL
from prorl_mq.errors import ConfigurationError, NotFound
from prorl_mq.schema.ids import TenantId, pool_ref
from prorl_mq.service.backends import Registrar
from prorl_mq.store import pools
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.pools import BackendInfo
from prorl_mq.store.server.connection import RedisSettings, connect
from prorl_mq.store.store import Store

ANSWER_S: Final = 60.0  # on a busy machine
UNAUTHORIZED: Final = 401
LATER: Final = frozenset({429, 502, 503, 504})  # it is asked again


async def join(redis: RedisSettings, url: str, token: str | None, addresses: Sequence[str]) -> None:
    """To the pool of the tenant whose token it is. Raises `ConfigurationError`."""
    tenant = await _tenant(url, token)
    async with _store(redis) as store:
        for address in addresses:
            try:
                await Registrar().add(store, pool_ref(tenant, POOL), BackendInfo(address=address))
            except ValueError as error:
                raise ConfigurationError(f"--backend {address}: {error}") from None


async def forget(redis: RedisSettings, address: str) -> None:
    """A local backend of an earlier service is gone, however that one ended: its jobs must not be sent to it."""
    async with _store(redis) as store:
        for pool in await pools.names(store):
            with contextlib.suppress(NotFound):
                await pools.remove(store, pool, address, drain=False)


async def _tenant(url: str, token: str | None) -> TenantId:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    plain = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # the address is on this machine
    async with httpx.AsyncClient(trust_env=False, verify=plain, headers=headers, timeout=ANSWER_S) as client:
        try:
            async with asyncio.timeout(ANSWER_S):
                while (answer := await client.get(f"{url}/v1/access")).status_code in LATER:
                    await asyncio.sleep(1)
        except (httpx.HTTPError, TimeoutError) as error:
            raise ConfigurationError(f"{url} does not say whose token it was given: {error!r}") from None
    if answer.status_code == UNAUTHORIZED:
        raise ConfigurationError(
            "PRORL_TOKEN is not in the file of --tokens: give the token of the tenant to whose pool the backends belong"
        )
    if not answer.is_success:
        raise ConfigurationError(f"{url} does not say whose token it was given, but {answer.status_code}")
    return TenantId(answer.json()["tenant"])


@contextlib.asynccontextmanager
async def _store(redis: RedisSettings) -> AsyncIterator[Store]:
    client = connect(redis)
    try:
        yield Store(client, Keys(redis.namespace), name="prorl-mq", outage_ms=5_000)
    finally:
        await client.aclose()
