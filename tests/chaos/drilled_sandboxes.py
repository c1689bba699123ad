"""Faults of drills about sandboxes and their images, and their cures."""

from pathlib import Path

from prorl_mq.schema.messages import Stage
from prorl_mq.store.images import records as images
from sandbox.lifetime import label
from tests.chaos.drilled import Service
from tests.chaos.test_faults import until_running
from tests.metrics.test_prometheus import TOOLS
from tests.support.registry import PLAIN, LoopbackRegistry, archive, file
from tests.support.service import until

BEFORE = "sandboxes-before"


def _place(service: Service) -> Path:
    return label.root(service.world.directory / "state")


async def no_room_for_sandboxes(service: Service) -> None:
    """A file is where the node has their directory: none can be made, as on a full disk."""
    place = _place(service)
    place.rename(place.with_name(BEFORE))
    place.touch()
    await service.submit(12, box=1)


async def room_for_sandboxes(service: Service) -> None:
    place = _place(service)
    place.unlink()
    place.with_name(BEFORE).rename(place)


async def workers_that_die_with_sandboxes(service: Service) -> None:
    """Three of RUN at once, with eight sandboxes each, and no other worker takes their jobs."""
    service.world.start_keeper()
    await service.scraped("prorl_sandbox_leaked_total")
    await service.three_of_run()
    await service.submit(24, box=1, run_ms=60_000)
    await until_running(service.store, 24)
    await service.none_alive(Stage.RUN)


async def images_that_no_registry_has(service: Service) -> None:
    """Four names; the node's INIT worker makes sandboxes of images."""
    registry = await service.stack.enter_async_context(LoopbackRegistry())
    service.world.env["PRORL_SANDBOX_TOOLS"] = str(TOOLS.parents[1])
    service.replace(Stage.INIT, 8, "--sandbox", "apptainer")
    await service.seen("init-8")
    for number in range(4):
        await service.submit(1, box=1, image=f"docker://{registry.host}/none:{number}")


async def an_image_that_it_has(service: Service) -> None:
    """Rows name one that arrives on the node."""
    registry = await service.stack.enter_async_context(LoopbackRegistry())
    name = registry.push("there", [archive([file("usr/there", b"1")])], media=PLAIN)
    await service.submit(1, box=1, image=name)

    async def arrived() -> bool:
        return any(each.state == "ready" for each in await images.all_of(service.store))

    await until(arrived, within_s=60)
    service.replace(Stage.INIT, 0)
