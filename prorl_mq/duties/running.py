"""All maintenance loops of one process, started and stopped together."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from functools import partial

from prorl_mq.archive.shelf import Shelf
from prorl_mq.duties.admit import Admission
from prorl_mq.duties.archiving.turns import Archiving
from prorl_mq.duties.backend_control import BackendControl
from prorl_mq.duties.draw import Replenishing
from prorl_mq.duties.duty import Duty
from prorl_mq.duties.expire import timers
from prorl_mq.duties.intake import Intake
from prorl_mq.duties.load_weights import DUTY, Weights
from prorl_mq.duties.payloads import PayloadCollection
from prorl_mq.duties.probe_backends import BackendHealth
from prorl_mq.duties.reap import Reaping
from prorl_mq.duties.service_clock import ServiceClock
from prorl_mq.duties.settle import Settling
from prorl_mq.duties.sweep import Janitor
from prorl_mq.process.backend_keys import keys_from
from prorl_mq.process.tracing import Tracing
from prorl_mq.service.backends import Registrar
from prorl_mq.store import streams
from prorl_mq.store.archive.place import archive_of
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.payloads.place import payloads_of
from prorl_mq.store.server import replicas
from prorl_mq.store.server.connection import RedisSettings, connect
from prorl_mq.store.store import ADMIT, Store

LEASE_MS = int(os.environ.get("PRORL_LEASE_MS", "15000"))  # of the workers; the same in every process


@contextlib.asynccontextmanager
async def running(
    settings: RedisSettings,
    *,
    name: str,
    lease_ms: int = LEASE_MS,
    tracing: Tracing | None = None,
    control: BackendControl | None = None,
    synced: bool = False,
    registrar: Registrar | None = None,
) -> AsyncIterator[None]:
    """Runs the loops until the context ends; then gives their leases up. `lease_ms` is that of the workers; `control`
    speaks to backends and is closed at the end; `synced`: submissions are accepted when they are on Redis's disk;
    `registrar` takes the backends of trainers without HTTP.
    """
    clients = connect(settings, wired=True), connect(settings), connect(settings, connections=16)
    (redis, pooled, waiting), keys = clients, Keys(settings.namespace)
    payloads, outage_ms = payloads_of(settings), settings.outage_ms
    store = Store(redis, keys, name=name, outage_ms=outage_ms, waiting=waiting, synced=synced, payloads=payloads)
    # Of pools, which are as large as their tenants make them: a reply about one holds up no reply about another.
    apart = Store(pooled, keys, name=name, outage_ms=outage_ms, waiting=waiting)
    control = control or BackendControl(keys=keys_from(os.environ))
    clock = ServiceClock(store, lease_ms=lease_ms)
    health = BackendHealth(apart, control)
    settling = Settling(store, linger_ms=4 * lease_ms, tracing=tracing)
    intake = Intake(store, tracing, registrar=registrar, apart=apart)
    archive = archive_of(settings)
    archiving = Archiving(store, Shelf(archive, settings.namespace)) if archive else None
    try:
        await streams.prepare(store)
        duties = [
            Duty(store, ADMIT, Admission(store).turn),
            Duty(store, "settle", settling.turn),
            Duty(store, "draw", Replenishing(store).turn),
            Duty(store, "reap", Reaping(store, clock, lease_ms=lease_ms).turn),
            *(Duty(store, name, turn) for name, turn in timers(store, clock).items()),
            Duty(store, "intake", intake.turn),
            Duty(store, "sweep", Janitor(store, lease_ms=lease_ms).turn),
            Duty(store, "health", health.turn),
            Duty(store, DUTY, Weights(apart, control).turn),
            Duty(store, "replicas", partial(replicas.turn, store, settings)),
            *_of_files(store, archiving),
        ]
        loops = [asyncio.create_task(duty.run(), name=f"duty {duty.name}") for duty in duties]
        try:
            yield
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            for close in (settling.aclose, health.aclose, intake.aclose, *([archiving.aclose] if archiving else [])):
                await close()
            with contextlib.suppress(Exception):
                async with asyncio.timeout(2):
                    for duty in duties:
                        await duty.leave()
    finally:
        await control.aclose()
        for client in clients:
            await client.aclose()


def _of_files(store: Store, archiving: Archiving | None) -> Iterator[Duty]:
    """Duties that need a place for files."""
    if store.payloads is not None:
        yield Duty(store, "payloads", PayloadCollection(store, store.payloads).turn)
    if archiving is not None:
        yield Duty(store, "archive", archiving.turn)
