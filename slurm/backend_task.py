"""An inference server as a job: it joins its pool when it is ready, and leaves it drained before it ends."""

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from prorl_mq.errors import NotFound
from prorl_mq.process.children import Program
from prorl_mq.process.crews.crew import Stopping
from prorl_mq.process.ports import free_port
from prorl_mq.schema.ids import DEFAULT_TENANT, pool_ref
from prorl_mq.service.backends import Registrar
from prorl_mq.settings import Setting, add
from prorl_mq.store import pools
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.pools import BackendInfo
from prorl_mq.store.server.connection import RedisSettings, connect, located
from prorl_mq.store.store import Store
from slurm.address import INTERFACE, address_of
from slurm.layout import role_file
from slurm.served import Served

SETTINGS: Final = (
    Setting("--rendezvous", "directory with a file for each role", type=Path, required=True),
    Setting("--pool", "the pool that it joins", default="policy"),
    Setting("--health", "path that answers 200 when the server is ready", default="/health"),
    INTERFACE,
    Setting("command", "after --; {host}, {port}, {master_port} and $NAMES are filled in", nargs="+"),
)
START_S: Final = 1800.0  # large models load slowly
DRAIN_S: Final = 30.0
GRACE_S: Final = 20.0
LOOK_S: Final = 0.5


class PoolMember:
    """A backend's place in its pool."""

    def __init__(self, store: Store, pool: str) -> None:
        self._store = store
        self._pool = pool_ref(DEFAULT_TENANT, pool)
        self._registrar = Registrar()  # with the operator's rights

    async def join(self, url: str) -> None:
        await self._registrar.add(self._store, self._pool, BackendInfo(address=url))

    async def leave(self, url: str) -> None:
        """Takes no further job, waits for those in flight for a while, and is gone."""
        try:
            await pools.remove(self._store, self._pool, url, drain=True)
            async with asyncio.timeout(DRAIN_S):
                while await self._in_flight(url):
                    await asyncio.sleep(LOOK_S)
        except (TimeoutError, NotFound):
            pass
        finally:
            await self._store.leave(self._pool, url, reason="its job ended", drain=False)

    async def _in_flight(self, url: str) -> int:
        return sum(each.in_flight for each in await pools.listing(self._store, self._pool) if each.address == url)


async def serve(given: argparse.Namespace) -> int:
    address = address_of(given.interface)
    settings = RedisSettings(
        rendezvous=role_file(given.rendezvous, "ingress"), namespace=os.environ.get("PRORL_NAMESPACE", "prorl")
    )
    await located(settings)

    def program(port: int) -> Program:
        filled = {"{host}": address, "{port}": str(port), "{master_port}": str(free_port(address))}
        words = [_filled(word, filled) for word in given.command]
        return Program(name="backend", argv=[os.path.expandvars(word) for word in words])

    redis = connect(settings)
    try:
        member = PoolMember(Store(redis, Keys(settings.namespace), name=f"backend-{os.getpid()}"), given.pool)
        with Stopping() as stopping:
            served = Served(program, address=address, ready=given.health, start_s=START_S, grace_s=GRACE_S)
            return await served.run(stopping, member.join, member.leave)
    finally:
        await redis.aclose()


def _filled(word: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(name, value)
    return word


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m slurm.backend_task", description=__doc__)
    add(parser, SETTINGS, {})
    return asyncio.run(serve(parser.parse_args(argv)))


if __name__ == "__main__":
    sys.exit(main())
