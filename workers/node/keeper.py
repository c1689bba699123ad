"""`python -m workers.node.keeper`: warm sandboxes for this node's workers, and the end of those that nobody owns.

One a node, beside its INIT, RUN and EVAL workers. It may be killed and started again at any time.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from pathlib import Path

import msgspec

from prorl_mq.errors import ConfigurationError
from prorl_mq.process import logs
from prorl_mq.schema.messages import Stage
from prorl_mq.settings import Setting, add
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import RedisSettings, connect, located
from prorl_mq.store.store import Store
from prorl_mq.store.workers import living, slots
from sandbox.errors import SandboxError
from sandbox.isolators.choice import AUTO
from sandbox.keeper.server import Keeper
from sandbox.protocol import SandboxProvider
from sandbox.remote.provider import RemoteProvider
from workers.metrics_listener import LOOPBACK, listening
from workers.node import keeper_metrics
from workers.node.burying import burying
from workers.node.remote_sweeping import RemoteSweeping, pause_s
from workers.node.sandboxes import chosen, own_provider
from workers.node.sweeping import Sweeping, repeat
from workers.redis_options import REDIS_SETTINGS, redis_settings
from workers.settings import LEASE, METRICS_LISTEN, NODE, STATE_DIR, default_node

LOOK_S = 2.0  # how often it looks which workers there are

SETTINGS = (
    *REDIS_SETTINGS,
    NODE,
    Setting("--sandbox", "the kind that the workers use", default=AUTO, variable="PRORL_SANDBOX"),
    STATE_DIR,
    msgspec.structs.replace(LEASE, help="the time between two sweeps"),
    METRICS_LISTEN,
)


class KeeperSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One keeper. All but `lease_ms` must be what the node's workers were given."""

    redis: RedisSettings
    node: str
    sandbox: str
    state_dir: Path
    lease_ms: int
    metrics_listen: str = LOOPBACK


def main(argv: Sequence[str] | None = None) -> None:
    """The command. Exit code 0 after SIGTERM, 1 where there can be no keeper."""
    settings = parse(argv)
    logs.configure(os.environ)
    try:
        asyncio.run(serve(settings))
    except (SandboxError, ConfigurationError) as error:
        sys.exit(f"prorl-keeper: {error}")


def arguments(env: Mapping[str, str]) -> argparse.ArgumentParser:
    """The command line; the environment fills what it leaves out, as for workers."""
    parser = argparse.ArgumentParser(prog="prorl-keeper", description="Keeps a node's sandboxes.")
    add(parser, SETTINGS, env)
    return parser


def parse(argv: Sequence[str] | None) -> KeeperSettings:
    """The settings that a command line and the environment give."""
    env = os.environ
    given = arguments(env).parse_args(argv)
    return KeeperSettings(
        redis=redis_settings(given, env),
        node=given.node or default_node(),
        sandbox=given.sandbox,
        state_dir=given.state_dir,
        lease_ms=given.lease_ms,
        metrics_listen=given.metrics_listen,
    )


async def serve(settings: KeeperSettings) -> None:
    """Keeps until SIGTERM or SIGINT. Redis need not be there: without it nothing is swept."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        async with AsyncExitStack() as stack:
            await located(settings.redis)
            redis = connect(settings.redis)
            stack.push_async_callback(redis.aclose)
            keys = Keys(settings.redis.namespace)
            store = Store(redis, keys, name=f"keeper-{settings.node}", outage_ms=settings.redis.outage_ms)
            kind = await chosen(settings.sandbox, settings.state_dir)
            provider = own_provider(kind, node=settings.node, state_dir=settings.state_dir)
            stack.push_async_callback(provider.aclose)
            keeper = Keeper(provider, settings.state_dir, keys.namespace)
            await stack.enter_async_context(keeper.listening())
            await stack.enter_async_context(_metrics(settings, keeper))
            await _follow(settings, store, keeper, provider)


def _metrics(settings: KeeperSettings, keeper: Keeper) -> AbstractAsyncContextManager[str | None]:
    async def fresh() -> None:
        keeper_metrics.show(await keeper.counts())

    return listening(
        settings.metrics_listen,
        keeper_metrics.REGISTRY,
        state_dir=settings.state_dir,
        name=f"keeper-{settings.node}",
        labels={"node": settings.node},
        fresh=fresh,
    )


async def _follow(settings: KeeperSettings, store: Store, keeper: Keeper, provider: SandboxProvider) -> None:
    """Follows Redis: which jobs own sandboxes, and how many workers may ask for one. Buries those that die."""
    sweeping = Sweeping(store, settings.state_dir, settings.node)

    async def sweep() -> None:
        keeper.leaked += len(await sweeping.sweep())

    async def sweep_remote(remote: RemoteSweeping) -> None:
        keeper.leaked += len(await remote.sweep())

    async def make_room() -> None:
        workers = [each for each in await living(store) if each.sandbox != "none"]
        keeper.pool.make_room(sum(slots(workers, stage, settings.node) for stage in (Stage.INIT, Stage.EVAL)))

    async with asyncio.TaskGroup() as group:
        group.create_task(repeat(sweep, every_s=settings.lease_ms / 1000, what="sweep"), name="sweep")
        if isinstance(provider, RemoteProvider):
            remote = partial(sweep_remote, RemoteSweeping(store, provider, settings.state_dir))
            turns = repeat(remote, every_s=pause_s(settings.lease_ms), what="sweep of remote sandboxes")
            group.create_task(turns, name="sweep remote")
        group.create_task(burying(store, keeper.watching), name="burying")
        group.create_task(repeat(make_room, every_s=LOOK_S, what="looking for workers"), name="room")


if __name__ == "__main__":
    main()
