"""A worker as its node's keeper watches it, so that its jobs are taken back at once when its process ends."""

import asyncio
import logging
from pathlib import Path
from typing import Final

import msgspec

from sandbox.keeper.wire import ACKNOWLEDGED, Watched, WatchWorker, ask, connected

AGAIN_S: Final = 1.0  # after a keeper is gone: the next one may have started
log = logging.getLogger(__name__)


async def stay_watched(place: Path, name: str, started_ms: int) -> None:
    """Asks each keeper of the node in turn to watch this process, until it is cancelled. Without one, or with one that
    cannot see the process, leases end by themselves.
    """
    loop = asyncio.get_running_loop()
    while True:
        try:
            async with connected(place) as connection:
                if (await ask(connection, WatchWorker(name=name, started_ms=started_ms), Watched)).seen:
                    await loop.sock_sendall(connection, ACKNOWLEDGED)
                else:
                    log.info("the keeper at %s cannot see this process: its leases outlive it", place)
                await loop.sock_recv(connection, 1)  # nothing more is said: it ends with the keeper
        except (OSError, msgspec.DecodeError):
            pass
        await asyncio.sleep(AGAIN_S)
