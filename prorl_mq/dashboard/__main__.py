"""`python -m prorl_mq.dashboard project|serve`: the two processes behind `prorl-mq dashboard`."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Final

from prorl_mq.broker import Broker
from prorl_mq.connection import connect
from prorl_mq.dashboard.mirror import Mirror
from prorl_mq.dashboard.projector import Projector
from prorl_mq.dashboard.settings import DashboardSettings, settings_from
from prorl_mq.errors import ConfigurationError
from prorl_mq.keys import Keys

NICENESS: Final = 10  # a mirror may lag; what it shows may not


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 after SIGTERM, 2 for a wrong configuration."""
    try:
        settings = settings_from(sys.argv[1:] if argv is None else argv)
        os.nice(NICENESS)
        asyncio.run(_project(settings) if settings.role == "project" else _serve(settings))
    except ConfigurationError as error:
        print(f"prorl-mq dashboard: {error}", file=sys.stderr)
        return 2
    return 0


@contextlib.asynccontextmanager
async def broker(settings: DashboardSettings) -> AsyncIterator[Broker]:
    """The queue, as the dashboard's processes speak to it."""
    redis, waiting = connect(settings.redis), connect(settings.redis, blocking=True, connections=2)
    try:
        keys = Keys(settings.redis.namespace)
        yield Broker(redis, keys, name="dashboard", outage_ms=settings.redis.outage_ms, waiting=waiting)
    finally:
        await waiting.aclose()
        await redis.aclose()


async def _project(settings: DashboardSettings) -> None:
    mirror = connect(settings.mirror)
    try:
        async with broker(settings) as queue:
            projector = Projector(queue, Mirror(mirror, settings.redis.namespace))
            running = asyncio.create_task(projector.run(rebuild=settings.rebuild), name="projector")
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, running.cancel)
            with contextlib.suppress(asyncio.CancelledError):
                await running
    finally:
        await mirror.aclose()


async def _serve(settings: DashboardSettings) -> None:
    from prorl_mq.dashboard.page import serve

    async with broker(settings) as queue:
        await serve(settings, queue)


if __name__ == "__main__":
    sys.exit(main())
