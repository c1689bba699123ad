"""An application that is served beside a test that waits: on a port, in a thread with its own event loop."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import uvicorn

from api.app import create_app
from api.config import ApiSettings
from prorl_mq.process.connections import TimedProtocol
from prorl_mq.store.server.connection import RedisSettings, connect
from tests.api.service import announce_source


@contextlib.contextmanager
def threaded(settings: RedisSettings, *, idle_s: int = 5, beside: bool = False, **options: Any) -> Iterator[str]:
    """Its address. Redis is empty but for a data source, unless this one comes `beside` what is there."""
    asyncio.run(_prepare(settings, beside=beside))
    app = create_app(ApiSettings(redis=settings, **options))
    config = uvicorn.Config(app, port=0, log_level="critical", ws="none", http=TimedProtocol, timeout_keep_alive=idle_s)
    server = uvicorn.Server(config)
    ready = threading.Event()
    startup = server.startup

    async def announcing(sockets: object = None) -> None:
        await startup(None)
        ready.set()

    server.startup = announcing  # type: ignore[method-assign]
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert ready.wait(30)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


async def _prepare(settings: RedisSettings, *, beside: bool) -> None:
    if not beside:
        redis = connect(settings)
        await redis.execute_command("FLUSHALL")
        await redis.aclose()
    await announce_source(settings)
