"""The clients of the ProRL routes whose server is started."""

from prorl_mq.store.core import Repeat
from prorl_mq.store.store import Store


async def is_started(store: Store, client: str) -> bool:
    """True if a client has started its server and not stopped it."""
    return bool(await store.read("SISMEMBER", store.keys.prorl, client))


async def start(store: Store, client: str) -> bool:
    """Notes a start; false if the server runs already. A repeat after a lost reply answers false."""
    return bool(await store.write("SADD", store.keys.prorl, client, repeat=Repeat.SAME))


async def stop(store: Store, client: str) -> None:
    """Notes a stop. A repeat changes nothing."""
    await store.write("SREM", store.keys.prorl, client, repeat=Repeat.SAME)
