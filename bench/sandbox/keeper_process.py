"""A node's keeper, as a process of its own: KIND STATE_DIR TOOLS_DIR. It ends with its standard input."""

import asyncio
import sys
from pathlib import Path

from bench.sandbox.ours import SERVICE, provider_of
from sandbox.keeper.server import Keeper

ROOM = 4


async def keep(kind: str, state_dir: Path, tools: Path) -> None:
    provider = provider_of(kind, state_dir, tools)
    keeper = Keeper(provider, state_dir, SERVICE)
    async with keeper.listening():
        keeper.pool.make_room(ROOM)
        await asyncio.to_thread(sys.stdin.read)
    await provider.aclose()


if __name__ == "__main__":
    asyncio.run(keep(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])))
