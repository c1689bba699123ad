"""`prorl-worker`: one worker process of one stage."""

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from prorl_mq.errors import ConfigurationError, ProrlError
from prorl_mq.process import logs, tokenizers
from prorl_mq.process.backend_keys import BackendKeys, keys_from
from prorl_mq.process.collector import calm
from prorl_mq.process.crews.division import MOST_SLOTS
from prorl_mq.process.loop_lag import LoopLag
from prorl_mq.process.tracing import from_environment
from prorl_mq.schema.messages import Stage
from prorl_mq.settings import Setting, add
from prorl_mq.store.server import fitness
from prorl_mq.store.server.connection import connect, located, patiently
from prorl_mq.store.server.tracking import tracked
from sandbox.errors import SandboxUnavailable
from sandbox.isolators.choice import AUTO, UNTRUSTED
from sandbox.isolators.layers.copying import Copies
from sandbox.keeper import place
from sandbox.keeper.client import KeptProvider
from sandbox.lifetime import allotment, cgroup
from sandbox.protocol import REMOTE, SandboxProvider
from sandbox.remote.provider import RemoteProvider
from workers.agent.loading import check_pool, usable_models, usable_renderer
from workers.inference.clients import InferenceClients
from workers.metrics import REGISTRY
from workers.metrics_listener import listening
from workers.node.images.place import SWEEP_S, node_images, sweep_once
from workers.node.images.waiting import ImageWaits
from workers.node.remote_sweeping import RemoteSweeping, pause_s
from workers.node.sandboxes import chosen, own_provider, tried
from workers.node.starts import WatchedProvider
from workers.node.sweeping import Sweeping, repeat
from workers.node.watched import stay_watched
from workers.process import division
from workers.process.lifetime import Draining, allocation
from workers.process.worker import Worker
from workers.redis_options import REDIS_SETTINGS, redis_settings
from workers.settings import LEASE, METRICS_LISTEN, NODE, STATE_DIR, WorkerSettings, default_node, plain, slots
from workers.stages.backends import Pools
from workers.stages.eval import EvalStage
from workers.stages.guarded import GuardedStage
from workers.stages.init import InitStage
from workers.stages.models import PoolModels
from workers.stages.registry import Registry, load
from workers.stages.run import RunStage
from workers.stages.stage import StageRunner

SETTINGS = (
    Setting("--stage", "the stage whose jobs it runs", required=True, choices=tuple(stage.value for stage in Stage)),
    *REDIS_SETTINGS,
    Setting(
        "--slots",
        "jobs at a time; N+M: M more in RUN, for rollouts that lost a node or a worker and would wait for a slot. "
        f"Above {MOST_SLOTS} RUN is several processes",
        type=slots,
        default="8",
        variable="PRORL_SLOTS",
    ),
    NODE,
    Setting("--name", "unique name of this process; else stage-node-pid", type=plain, default=""),
    Setting(
        "--sandbox",
        "auto, untrusted, apptainer, bubblewrap, local, remote or none",
        default=AUTO,
        variable="PRORL_SANDBOX",
    ),
    STATE_DIR,
    Setting("--tokenizer", "directory with the policy's tokenizer", variable="PRORL_TOKENIZER"),
    msgspec.structs.replace(LEASE, help="how long a job is this worker's without a heartbeat"),
    Setting(
        "--grace-ms", "how long jobs may run after SIGTERM", type=int, default=30_000, unit="ms"
    ),
    Setting("--idle-exit-ms", "drain after so long without a job", type=int, unit="ms"),
    Setting(
        "--eval-bytes-limit", "RUN claims nothing while more than this waits for EVAL",
        type=int, default=1 << 30, unit="bytes",
    ),
    METRICS_LISTEN,
    Setting("--handlers", "entry points to load, separated by commas; else all", default=""),
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    """The command. Exit code 0 after a drain, 75 after one that SIGUSR1 asked for, 1 for what went wrong: also where a
    drain had to be cut short.
    """
    settings = parse(argv)
    os.environ["PRORL_STATE"] = str(settings.state_dir)  # for task families that keep data there
    logs.configure(os.environ)
    try:
        if parts := division.programs(settings, sys.argv[1:] if argv is None else argv):
            sys.exit(asyncio.run(division.serve(settings, parts)))
        calm()
        sys.exit(uvloop.run(serve(settings)))
    except* (ProrlError, SandboxUnavailable) as group:
        sys.exit(f"prorl-worker: {leaf(group)}")


def leaf(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first exception inside groups of groups."""
    first = group.exceptions[0]
    return leaf(first) if isinstance(first, BaseExceptionGroup) else first


def arguments(env: Mapping[str, str]) -> argparse.ArgumentParser:
    """The command line; the environment fills what it leaves out."""
    parser = argparse.ArgumentParser(prog="prorl-worker", description="Runs one stage of prorl_mq.")
    add(parser, SETTINGS, env)
    return parser


def parse(argv: Sequence[str] | None) -> WorkerSettings:
    """The settings that a command line and the environment give."""
    env = os.environ
    parser = arguments(env)
    given = parser.parse_args(argv)
    count, spare = given.slots
    if count < 1 or spare < 0:
        parser.error("--slots must be at least 1, and what follows a + at least 0")
    task = allocation(env)
    return WorkerSettings(
        stage=Stage(given.stage),
        redis=redis_settings(given, env),
        slots=count,
        spare_slots=spare,
        node=given.node or default_node(),
        name=given.name or (task.worker_name(given.stage, given.node or default_node(), os.getpid()) if task else ""),
        sandbox=given.sandbox,
        state_dir=given.state_dir,
        tokenizer=given.tokenizer,
        lease_ms=given.lease_ms,
        grace_ms=given.grace_ms,
        idle_exit_ms=given.idle_exit_ms,
        ends_at_ms=task.ends_at_ms if task else None,
        eval_bytes_limit=given.eval_bytes_limit,
        metrics_listen=given.metrics_listen,
        handlers=tuple(name for name in given.handlers.split(",") if name),
    )


def limits_of(kind: str) -> str:
    """`hard` or `watchdog`: enforcement of the limits of a kind's sandboxes on this machine; empty: not known here."""
    if kind not in {"apptainer", "bubblewrap"}:
        return "" if kind in {"none", REMOTE} else "watchdog"
    return "hard" if cgroup.delegated() else "watchdog"


async def serve(settings: WorkerSettings) -> int:
    """Wires one worker and runs it until a signal; its exit code."""
    with Draining() as draining:
        try:
            await _work(settings, draining)
        except asyncio.CancelledError:
            if not draining.asked:
                raise
    return draining.exit_code


async def _work(settings: WorkerSettings, draining: Draining) -> None:
    if (
        settings.sandbox not in {AUTO, UNTRUSTED, "none"} and settings.stage is not Stage.RUN
    ):  # which finds its sandboxes made
        await tried(settings.sandbox, settings.state_dir)
    settings = msgspec.structs.replace(settings, sandbox=await chosen(settings.sandbox, settings.state_dir))
    settings = msgspec.structs.replace(settings, limits=limits_of(settings.sandbox))
    if allocation(os.environ) and settings.limits:
        logging.getLogger("workers").warning("limits: %s", allotment.said(allotment.here(), os.environ))
    registry = load(settings.handlers)
    keys = keys_from(os.environ)
    use_tokenizer(settings)
    await check_policy(settings, registry)
    async with AsyncExitStack() as stack:
        await located(settings.redis)
        redis = connect(settings.redis, wired=True)
        stack.push_async_callback(redis.aclose)
        for warning in await patiently(lambda: fitness.start_up(redis), outage_ms=settings.redis.outage_ms):
            logging.getLogger("workers").warning("redis: %s", warning)
        stack.push_async_callback(registry.aclose)
        tracing = from_environment(os.environ, f"prorl-{settings.stage}")
        if tracing is not None:
            stack.push_async_callback(asyncio.to_thread, tracing.close)
        worker = Worker(settings, registry, redis, tracing, lambda: draining.within(settings.grace_ms))
        await _show_metrics(settings, stack)
        provider = _provider(settings, worker, stack)
        stage = await _stage(settings, worker, provider, keys, stack)
        stage = GuardedStage(stage, settings.stage, worker.store, worker.shared, settings.node)
        draining.applies_to(worker)
        await worker.run(stage)


def use_tokenizer(settings: WorkerSettings) -> None:
    """Raises `ConfigurationError` for a directory without one; none at all is said, for not every agent needs one."""
    if settings.tokenizer:
        os.environ["PRORL_TOKENIZER"] = settings.tokenizer
    if settings.stage is Stage.RUN and settings.tokenizer:
        tokenizers.check_directory(Path(settings.tokenizer), "--tokenizer")
    elif settings.stage is Stage.RUN and not tokenizers.of_pools(os.environ):
        logging.getLogger("workers").warning("tokenizer: %s", tokenizers.NONE)


async def check_policy(settings: WorkerSettings, registry: Registry) -> None:
    """Loads what a worker's jobs will need of models. Raises `ConfigurationError` for one that cannot be used, or not
    with the tools of a family that the worker was started for.
    """
    if settings.stage is Stage.EVAL:
        for pool in registry.asked:
            await check_pool(pool)
    if settings.stage is not Stage.RUN:
        return
    log = logging.getLogger("workers")
    async for pool, renderer in usable_models():
        if renderer.tools_fault is not None:
            log.warning("pool %s: tasks with tools are refused: %s", pool, renderer.tools_fault)
    fault = (await usable_renderer()).tools_fault if settings.tokenizer else None
    if fault is None:
        return
    needing = ", ".join(registry.needing_tools)
    if settings.handlers and needing:
        raise ConfigurationError(f"--tokenizer {settings.tokenizer}: {needing} needs tools: {fault}")
    log.warning("tasks with tools are refused: %s", fault)


async def _show_metrics(settings: WorkerSettings, stack: AsyncExitStack) -> None:
    labels = {"stage": settings.stage.value, "node": settings.node, "worker": settings.worker_name}
    listener = listening(
        settings.metrics_listen, REGISTRY, state_dir=settings.state_dir, name=settings.worker_name, labels=labels
    )
    await stack.enter_async_context(listener)
    _in_background(LoopLag(REGISTRY).run(), "loop lag", stack)


def _provider(settings: WorkerSettings, worker: Worker, stack: AsyncExitStack) -> SandboxProvider | None:
    if settings.sandbox == "none":
        return None
    own = own_provider(settings.sandbox, node=settings.node, state_dir=settings.state_dir)
    kept = KeptProvider(own, settings.state_dir, settings.redis.namespace)
    provider = WatchedProvider(kept, worker.shared, worker.node, _images(settings, worker, stack))
    stack.push_async_callback(provider.aclose)
    sweeping = Sweeping(worker.store, settings.state_dir, settings.node)
    turns = repeat(sweeping.instead_of_keeper, every_s=settings.lease_ms / 1000, what="sweep")
    _in_background(turns, "sweeping", stack)
    if isinstance(own, RemoteProvider):
        remote = RemoteSweeping(worker.store, own, settings.state_dir)
        every_s = pause_s(settings.lease_ms)
        turns = repeat(remote.instead_of_keeper, every_s=every_s, what="sweep of remote sandboxes")
        _in_background(turns, "sweeping remote sandboxes", stack)
    if settings.stage is Stage.RUN:
        keeper = place.place(settings.state_dir, settings.redis.namespace, settings.node)
        _in_background(stay_watched(keeper, settings.worker_name, worker.started_ms), "being watched", stack)
    return provider


def _images(settings: WorkerSettings, worker: Worker, stack: AsyncExitStack) -> ImageWaits | None:
    """The images of this node, for jobs that wait for them: Apptainer alone takes other ones than directories."""
    if settings.sandbox != "apptainer":
        return None
    found = node_images(worker.store, settings.node, settings.state_dir)
    stack.push_async_callback(found.fetches.aclose)
    turns = repeat(
        lambda: sweep_once(worker.store, found.cache, settings.node), every_s=SWEEP_S, what="sweep of images"
    )
    _in_background(turns, "sweep of images", stack)
    return ImageWaits(worker.store, found.cache, found.fetches, settings.node, bounded=settings.stage is Stage.INIT)


def _in_background(loop: Coroutine[Any, Any, None], name: str, stack: AsyncExitStack) -> None:
    """Runs a loop until the stack unwinds. One that ends by an error says so at once."""
    task = asyncio.create_task(loop, name=name)
    task.add_done_callback(_ended)

    async def stop() -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    stack.push_async_callback(stop)


def _ended(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and task.exception() is not None:
        logging.getLogger("workers").error("%s has ended", task.get_name(), exc_info=task.exception())


async def _pools(worker: Worker, keys: BackendKeys, stack: AsyncExitStack) -> Pools:
    clients = await stack.enter_async_context(InferenceClients(keys=keys))
    following = tracked(worker.settings.redis)
    stack.push_async_callback(following.aclose)
    pools = Pools(worker.store, clients, worker.waits, following)
    _in_background(pools.calls.run(), "calls", stack)
    _in_background(pools.rooms.run(), "rooms", stack)
    return pools


async def _stage(
    settings: WorkerSettings,
    worker: Worker,
    provider: SandboxProvider | None,
    keys: BackendKeys,
    stack: AsyncExitStack,
) -> StageRunner:
    match settings.stage:
        case Stage.INIT:
            return InitStage(worker.registry, provider, worker.store, settings.node)
        case Stage.RUN:
            pools = await _pools(worker, keys, stack)
            copies = Copies()
            stack.push_async_callback(copies.aclose)
            send = worker.turn_logs.send
            return RunStage(
                worker.registry, provider, worker.store, pools.policy, settings.node, send, copies, PoolModels(pools)
            )
        case Stage.EVAL:
            models = PoolModels(await _pools(worker, keys, stack))
            return EvalStage(worker.registry, provider, worker.store, worker.waits, models)


if __name__ == "__main__":
    main()
