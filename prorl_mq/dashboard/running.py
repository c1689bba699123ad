"""The two processes of the dashboard, wired: the projector, and the page."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator

from prorl_mq.dashboard.mirror import Mirror, TakenOver
from prorl_mq.dashboard.projector import Projector
from prorl_mq.dashboard.settings import DashboardSettings
from prorl_mq.errors import ConfigurationError
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import connect
from prorl_mq.store.store import Store


@contextlib.asynccontextmanager
async def projector(settings: DashboardSettings) -> AsyncIterator[Projector]:
    """A projector on connections of its own."""
    redis = connect(settings.mirror, connections=2, wired=True)
    try:
        async with _store(settings, wired=True) as queue:
            yield Projector(queue, Mirror(redis, settings.redis.namespace))
    finally:
        await redis.aclose()


async def project(settings: DashboardSettings) -> None:
    """Follows the queue until SIGTERM or SIGINT; or rebuilds every record, and ends."""
    async with projector(settings) as made:
        if settings.rebuild:
            await _rebuild(made)
            return
        running = asyncio.create_task(made.run(), name="projector")
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, running.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await running
        await made.let_go()


async def _rebuild(made: Projector) -> None:
    try:
        await made.rebuild()
    except TakenOver:
        raise ConfigurationError("another projector was started meanwhile, and makes the records itself") from None
    await made.let_go()


async def serve(settings: DashboardSettings) -> None:
    """Serves the page until SIGTERM or SIGINT."""
    from prorl_mq.dashboard import page

    async with _store(settings, wired=False) as queue:
        await page.serve(settings, queue)


@contextlib.asynccontextmanager
async def _store(settings: DashboardSettings, *, wired: bool) -> AsyncIterator[Store]:
    redis, waiting = connect(settings.redis, wired=wired), connect(settings.redis, connections=2)
    try:
        keys = Keys(settings.redis.namespace)
        yield Store(redis, keys, name="dashboard", outage_ms=settings.redis.outage_ms, waiting=waiting)
    finally:
        await waiting.aclose()
        await redis.aclose()
