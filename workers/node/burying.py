"""Burying: what the keeper sees die on its node loses its leases (`prorl_mq.duties.bury`)."""

import logging

from prorl_mq.duties.bury import bury
from prorl_mq.store.server.faults import FAULTS
from prorl_mq.store.store import Store
from sandbox.keeper.watching import Watching

log = logging.getLogger(__name__)


async def burying(store: Store, watching: Watching) -> None:
    """Buries until it is cancelled. What Redis refuses is left to the leases, which end by themselves."""
    while True:
        dead = await watching.dead.get()
        try:
            count = await bury(store, dead.name, dead.started_ms)
        except FAULTS as error:
            log.warning("worker %s has died; its jobs wait for their leases to end: %s", dead.name, error)
        else:
            if count:
                log.warning("worker %s has died; %d jobs of it continue elsewhere", dead.name, count)
