"""The replicas duty: keeps the number of replicas that must confirm in step with those that follow the primary."""

from typing import Final

from prorl_mq.store.server import replicas
from prorl_mq.store.server.connection import RedisSettings
from prorl_mq.store.store import Store

SOON_S: Final = 1.0  # between two looks in replicated mode
LATER_S: Final = 10.0  # elsewhere


class Replicas:
    """The loop. What it does not see in time a confirmation sees itself: it waits for all that follow by then."""

    def __init__(self, store: Store, settings: RedisSettings) -> None:
        self._store = store
        self._settings = settings

    async def turn(self) -> float:
        """One look; nothing but a memo where the namespace is not in replicated mode."""
        if not self._store.acks:
            return LATER_S
        await replicas.keep(self._store, self._settings)
        return SOON_S
