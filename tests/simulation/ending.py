"""What must hold at the end of every history."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.world import World


async def check_end(world: "World") -> None: ...
