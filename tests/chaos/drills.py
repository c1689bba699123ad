"""Drills: a fault on a real service fires an alert, and what its row in troubleshooting.md says ends it.

`make drills` runs them, each by a real Prometheus and the rules of `ops/prometheus`, whose minutes are seconds here. CI
does not collect this file: `test_prometheus.py` has the expressions of all alerts, and two of these faults.
"""

import asyncio
import re
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from prorl_mq.schema.messages import Stage
from prorl_mq.service import cancel
from prorl_mq.store.archive import waiting
from prorl_mq.store.archive.place import DIRECTORY
from prorl_mq.store.server import fitness
from tests.chaos.drilled import Service
from tests.chaos.drilled_sandboxes import (
    an_image_that_it_has,
    images_that_no_registry_has,
    no_room_for_sandboxes,
    room_for_sandboxes,
    workers_that_die_with_sandboxes,
)
from tests.metrics import test_prometheus
from tests.metrics.test_prometheus import Prometheus, prometheus
from tests.support.service import RUN, acknowledge_all, start_all, store_of, until
from tests.support.world import World

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(1500)]
SHORT = (  # what a drill cannot wait for, and in place of it
    (r"for: \d+m", "for: 2s"),
    (r"\[(5|10|15)m\]", "[20s]"),
    (r"offset 15m", "offset 20s"),
    (r"> 7200", "> 6"),
    (r"read_age_seconds > 30", "read_age_seconds > 5"),
)


async def no_api(service: Service) -> None:
    service.world.kill("api-tcp")


async def an_api(service: Service) -> None:
    service.start_api()


async def no_workers(service: Service) -> None:
    await service.none_alive(Stage.RUN)
    await service.submit(4)


async def workers(service: Service) -> None:
    service.restart(Stage.RUN)


async def a_killed_process(service: Service) -> None:
    await service.none_alive(Stage.EVAL)


async def a_start_on_its_node(service: Service) -> None:
    service.restart(Stage.EVAL)


async def too_few_slots(service: Service) -> None:
    await service.submit(60, run_ms=3_000)


async def the_old_jobs_are_cancelled(service: Service) -> None:
    await cancel.cancel(service.store, "run", RUN)


async def little_memory(service: Service) -> None:
    used = int((await fitness.info(service.store.redis, "memory"))["used_memory"])
    await service.store.redis.execute_command("CONFIG", "SET", "maxmemory", str(used * 5 // 4))


async def acknowledged_and_raised(service: Service) -> None:
    await acknowledge_all(service.store)
    await service.store.redis.execute_command("CONFIG", "SET", "maxmemory", str(1 << 30))


async def a_broken_family(service: Service) -> None:
    await service.submit(12, fail_init=True)


async def sound_tasks(service: Service) -> None:
    """The rows that break are gone; those of the others go through."""
    await service.submit(40)


async def a_frozen_backend(service: Service) -> None:
    assert service.world.backend is not None
    service.world.backend.send_signal(signal.SIGSTOP)


async def a_thawed_backend(service: Service) -> None:
    assert service.world.backend is not None
    service.world.backend.send_signal(signal.SIGCONT)


async def dead_workers(service: Service) -> None:
    """Three at once, with eight jobs each."""
    await service.three_of_run()
    await service.submit(24, run_ms=20_000)
    await service.held(24)
    await service.none_alive(Stage.RUN)


async def workers_that_live(service: Service) -> None:
    service.restart(Stage.RUN)
    await cancel.cancel(service.store, "run", RUN)


async def a_broken_library(service: Service) -> None:
    await service.submit(30, init_ms="soon")  # no number: INIT raises


async def a_repaired_one(service: Service) -> None:
    """The next job that tries finds it so."""
    await cancel.cancel(service.store, "run", RUN)
    await service.submit(8)


async def a_handler_that_blocks(service: Service) -> None:
    await service.submit(60, block_ms=700)


async def time_passes(_: Service) -> None:
    pass


async def what_dies_slowly_is_cancelled(service: Service) -> None:
    await service.submit(8, dies_ms=11_000)
    await service.held(8)
    await cancel.cancel(service.store, "run", RUN)


async def no_room_for_the_archive(service: Service) -> None:
    """A file is where the archive has its folder."""
    place = service.world.directory / DIRECTORY
    place.mkdir(exist_ok=True)
    (place / service.world.namespace).touch()
    store = service.store

    async def promised() -> bool:
        return bool(await store.read("EXISTS", store.keys.archive_state))

    await until(promised, within_s=90)
    await service.submit(2)

    async def archived_something() -> bool:
        return bool(await acknowledge_all(service.store))

    await until(archived_something, within_s=60)


async def more_waits_than_it_may(service: Service) -> None:
    """The archive's disk takes nothing, and Redis has no room for what waits."""
    place, store = service.world.directory / DIRECTORY / service.world.namespace, service.store
    if place.is_dir():  # of the drill before
        place.rename(service.world.directory / "archived-before")
    place.touch()
    await service.submit(4)

    async def closed() -> bool:
        return bool(await store.read("HGETALL", store.keys.unacked))

    await until(closed, within_s=60)
    await little_memory(service)

    async def no_room() -> bool:
        return (await waiting.state(store)).most_bytes == 0

    await until(no_room, within_s=60)
    await acknowledge_all(store)


async def its_disk_takes_files_again(service: Service) -> None:
    await acknowledged_and_raised(service)
    await room_for_the_archive(service)


async def a_silent_connection(service: Service) -> None:
    """The only worker of RUN is behind a tunnel that hangs: no read is answered, and none ends."""
    await service.none_alive(Stage.RUN)
    await service.tunnel.start()
    service.world.start_worker(Stage.RUN, 9, "--redis", f"unix://{service.world.directory}/tunnel.sock")
    await service.seen("run-9")
    service.tunnel.silent = True
    await service.submit(30)


async def it_is_restarted(service: Service) -> None:
    service.world.kill("run-9")
    del service.world.workers["run-9"]
    service.restart(Stage.RUN)
    await service.tunnel.aclose()


async def a_history_that_is_rewritten(service: Service) -> None:
    await service.submit(4)
    await service.submit(4, breaks=True)


async def a_scorer_that_fails_on_long_texts(service: Service) -> None:
    await service.submit(40, n=4, loses_long=True)


async def a_link_that_stalls(service: Service) -> None:
    await service.stalled()


async def longer_leases(service: Service) -> None:
    """The link stalls again, for as long."""
    await service.tunnel.aclose()
    await service.stalled("--lease-ms", "30000")


async def room_for_the_archive(service: Service) -> None:
    (service.world.directory / DIRECTORY / service.world.namespace).unlink()


class Drill(NamedTuple):
    alert: str
    fault: Callable[[Service], Awaitable[None]]
    cure: Callable[[Service], Awaitable[None]]


DRILLS = (
    Drill("ProrlProcessDown", a_killed_process, a_start_on_its_node),
    Drill("ProrlWorkersMissing", no_workers, workers),
    Drill("ProrlRedisMemoryHigh", little_memory, acknowledged_and_raised),
    Drill("ProrlQueueStuck", too_few_slots, the_old_jobs_are_cancelled),
    Drill("ProrlInfraErrors", a_broken_family, sound_tasks),
    Drill("ProrlBackendShut", a_frozen_backend, a_thawed_backend),
    Drill("ProrlReclaims", dead_workers, workers_that_live),
    Drill("ProrlBreakerOpen", a_broken_library, a_repaired_one),
    Drill("ProrlLoopLag", a_handler_that_blocks, the_old_jobs_are_cancelled),
    Drill("ProrlCancelsSlow", what_dies_slowly_is_cancelled, time_passes),
    Drill("ProrlArchiveFault", no_room_for_the_archive, room_for_the_archive),
    Drill("ProrlArchivePassedOver", more_waits_than_it_may, its_disk_takes_files_again),
    Drill("ProrlTokensBroken", a_history_that_is_rewritten, the_old_jobs_are_cancelled),
    Drill("ProrlWorkerReadsNothing", a_silent_connection, it_is_restarted),
    Drill("ProrlBiasedLoss", a_scorer_that_fails_on_long_texts, sound_tasks),
    Drill("ProrlApiMissing", no_api, an_api),
    Drill("ProrlNodeShut", no_room_for_sandboxes, room_for_sandboxes),
    Drill("ProrlSandboxesLeaked", workers_that_die_with_sandboxes, workers_that_live),
    Drill("ProrlImagesFail", images_that_no_registry_has, an_image_that_it_has),
    Drill("ProrlStaleCommits", a_link_that_stalls, longer_leases),
)


async def firing(prom: Prometheus, alert: str) -> bool:
    return (await prom.alerts()).get(alert) == "firing"


async def calm(prom: Prometheus, alert: str) -> bool:
    return alert not in await prom.alerts()


async def drilled(service: Service, prom: Prometheus, drill: Drill) -> str:
    """One drill, and a row of what it took."""
    await until(lambda: calm(prom, drill.alert), within_s=120)
    began = time.monotonic()
    await drill.fault(service)
    await until(lambda: firing(prom, drill.alert), within_s=120)
    fired = time.monotonic()
    await drill.cure(service)
    await until(lambda: calm(prom, drill.alert), within_s=120)
    return f"| `{drill.alert}` | {fired - began:.0f} | {time.monotonic() - fired:.0f} |"


async def test_each_fault_fires_its_alert_and_the_cure_of_its_page_ends_it(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = (test_prometheus.OPS / "alerts.yml").read_text()
    for long, short in SHORT:
        assert re.search(long, rules), long
        rules = re.sub(long, short, rules)
    (tmp_path / "alerts.yml").write_text(rules)
    (tmp_path / "prometheus.yml").write_text((test_prometheus.OPS / "prometheus.yml").read_text())
    monkeypatch.setattr(test_prometheus, "OPS", tmp_path)
    directory = tmp_path / "prometheus"
    directory.mkdir()
    rows = []
    world.sandbox = "bubblewrap"
    world.directory.chmod(0o755)  # where sandboxes are, which are not root's
    (world.directory / "state").mkdir(mode=0o755)
    async with store_of(world) as store, (service := Service(world, store)).stack:
        await start_all(world, store, workers=1, apis=0)
        service.start_api()
        url, state = f"http://127.0.0.1:{service.port}", world.directory / "state"
        await until(lambda: listening(service.port))
        async with prometheus(directory, url, state) as prom:
            service.prom = prom
            await prom.until(lambda: up(prom))
            for drill in DRILLS:
                rows.append(await drilled(service, prom, drill))
                print(rows[-1], flush=True)
    assert len(rows) == len(DRILLS)


async def up(prom: Prometheus) -> bool:
    return await prom.up() == {"prorl-api", "prorl-workers"}


async def listening(port: int) -> bool:
    try:
        await asyncio.to_thread(lambda: socket.create_connection(("127.0.0.1", port), 1).close())
    except OSError:
        return False
    return True
