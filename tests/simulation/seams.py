"""What of the outside the product touches, replaced for one history: time, chance, connections, threads, logs."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from prorl_mq import chance, clock
from prorl_mq.duties.backend_control import BackendControl
from prorl_mq.store.server import beat, connection
from prorl_mq.store.server.connection import RedisSettings
from tests.simulation import thread
from tests.simulation.client import Client, ThreadClient
from tests.simulation.server import EPOCH_US
from workers.process import heartbeat, repairs, worker

if TYPE_CHECKING:
    from tests.simulation.world import World


class NoControl(BackendControl):
    """There are no backends."""

    def __init__(self) -> None: ...

    async def aclose(self) -> None: ...


class Errors(logging.Handler):
    """Errors in the product's log are findings: a duty's turn that failed, a callback that raised."""

    def __init__(self, world: "World") -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self._world.finding("an error was logged", f"{record.getMessage()}: {error!r}")


@contextlib.contextmanager
def replaced(world: "World") -> Iterator[None]:
    """While one history lasts."""
    loop, network = world.loop, world.network
    random: Random = world.options.random("product")

    def factory(settings: RedisSettings, connections: int, *, wired: object) -> Any:
        return Client(network, answer_s=settings.answer_s, connections=connections)

    def thread_client(settings: RedisSettings, *, timeout_s: float) -> ThreadClient:
        return ThreadClient(network, timeout_s)

    times = SimpleNamespace(time_ns=lambda: (EPOCH_US + loop.now_us) * 1000, monotonic=loop.time)
    with contextlib.ExitStack() as stack:
        patch = mock.patch.object
        stack.enter_context(patch(connection, "factory", factory))
        stack.enter_context(patch(clock, "time", times))
        stack.enter_context(patch(chance, "fraction", random.random))
        stack.enter_context(patch(chance, "number", random.getrandbits))
        stack.enter_context(patch(chance, "name", lambda size: random.randbytes(size).hex()))
        stack.enter_context(patch(heartbeat, "threading", thread))
        stack.enter_context(patch(beat, "_client", thread_client))
        stack.enter_context(patch(worker, "os", SimpleNamespace(getpid=lambda: 1, environ={})))
        stack.enter_context(patch(repairs, "_repaired", _repaired(world)))
        stack.enter_context(_log(Errors(world)))
        yield


def _repaired(world: "World") -> Callable[[str, str], None]:
    """Slots and tasks need a repair only after a defect; leases and entries also after an answer that was lost."""

    def noted(kind: str, what: str) -> None:
        world.network.counts[f"repaired {kind}"] += 1
        if kind in {"slot", "task"}:
            world.finding("a worker repaired itself", what)

    return noted


@contextlib.contextmanager
def _log(handler: logging.Handler) -> Iterator[None]:
    loggers = [logging.getLogger("prorl_mq"), logging.getLogger("workers")]
    before = [(each.level, each.propagate) for each in loggers]
    for each in loggers:
        each.addHandler(handler)
        each.setLevel(logging.ERROR)
        each.propagate = False
    try:
        yield
    finally:
        for each, (level, propagate) in zip(loggers, before, strict=True):
            each.removeHandler(handler)
            each.setLevel(level)
            each.propagate = propagate
