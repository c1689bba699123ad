"""A whole service on one machine: Redis, the API, workers and, if wanted, an inference backend, as child processes.

The order of the end is the reverse of the way that jobs take: workers hand back what they hold while the API and
Redis still answer, then the API ends, then the backend, and Redis last.
"""

import asyncio
import os
import shutil
import ssl
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec

from prorl_mq import local_token
from prorl_mq.cli.local import backends, place, programs
from prorl_mq.cli.local.redis_child import RedisChild, binary
from prorl_mq.cli.local.settings import AUTO, ServiceSettings
from prorl_mq.clock import monotonic
from prorl_mq.dashboard.settings import dashboard_token
from prorl_mq.errors import ProrlError
from prorl_mq.process import ownership, redis_server
from prorl_mq.process.chain import Chain
from prorl_mq.process.children import Child, Guard, Program, Say
from prorl_mq.process.ports import free_port, require_free
from prorl_mq.process.recorder import Recorder
from prorl_mq.servers import DATABASE
from prorl_mq.store.archive.place import archive_of
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.payloads.place import payloads_of
from prorl_mq.store.server.connection import RedisSettings, connect
from prorl_mq.store.store import Store
from prorl_mq.store.workers import living

LOOK_S: Final = 0.05
LOOK_AT_MODEL_S: Final = 0.5  # each look costs milliseconds that the model's start wants, too
TELL_S: Final = 10.0
API_GRACE_S: Final = 25.0
KEEPER_GRACE_S: Final = 10.0
DASHBOARD_GRACE_S: Final = 10.0
BACKEND_GRACE_S: Final = 10.0
Condition = Callable[[], Awaitable[bool]]


class StartFailed(ProrlError):
    """A process of the service did not come up; the message has its last words."""


class LocalService:
    """`start`, and `aclose` however `start` ends."""

    def __init__(self, settings: ServiceSettings, say: Say) -> None:
        self.settings = settings
        self.url = self.reached = ""  # of the API, from here and from other machines
        self.compat_url = ""
        self.token = ""  # of the service's own user; empty with --tokens and --open
        self.redis: RedisSettings | None = None
        self.dashboard = ""  # its address, with the token
        self.backends: list[str] = []
        self._say = say
        self._stack = AsyncExitStack()
        self._guard: Guard | None = None
        self._redis_child: RedisChild | None = None
        self._chain: Chain | None = None
        self._children: list[Child] = []
        self._keepers: list[asyncio.Task[None]] = []

    @property
    def pids(self) -> dict[str, int]:
        """The processes that run now, by their names: those of `programs`, and redis."""
        found = {child.program.name: child.pid for child in self._children if child.ended is None}
        if self._redis_child is not None:
            found["redis"] = self._redis_child.pid
        if self._chain is not None:
            found |= self._chain.pids
        return {name: pid for name, pid in found.items() if pid is not None}

    def kill(self) -> None:
        """Ends every process at once; accepted jobs are in Redis and continue after the next start."""
        for child in self._children:
            child.kill()
        for redis in (self._redis_child, self._chain):
            if redis is not None:
                redis.kill()

    async def aclose(self) -> None:
        """Drains and ends what was started, in the order that loses nothing."""
        await self._stack.aclose()

    async def start(self) -> None:
        """Starts everything at once; returns when the API is ready, every worker seen and every backend in the pool.

        Raises `StartFailed`, or `ConfigurationError` where nothing could be started.
        """
        settings = self.settings
        await asyncio.to_thread(ownership.check)
        for port in filter(None, (settings.port, settings.compat_port)):
            require_free(port)
        settings.state_dir.mkdir(parents=True, exist_ok=True)  # sandboxes' users must be able to pass it
        self._stack.enter_context(redis_server.locked(settings.state_dir))
        if settings.fresh:
            for left in (
                *(settings.state_dir / each for each in ("redis", "replicas")),
                programs.logs(settings),
                *filter(None, [settings.answers]),
            ):
                await asyncio.to_thread(shutil.rmtree, left, ignore_errors=True)
        own_redis = settings.redis is None
        self._guard = Guard(settings.state_dir if own_redis and settings.sandbox != "none" else None)
        self._stack.push_async_callback(self._guard.aclose)
        self._stack.enter_context(place.left(settings.state_dir, settings.redis))
        wanted = not settings.tokens and not settings.open
        self.token = self._stack.enter_context(local_token.left(settings.state_dir, wanted=wanted))
        given = [await self._recorded(address) for address in settings.backends]
        left_behind = self._local_backend_file.read_text() if self._local_backend_file.exists() else None
        model = asyncio.create_task(self._serve_model(), name="local backend")
        self._stack.push_async_callback(_cancelled, model)
        redis = await self._start_redis()
        if own_redis:  # nobody else's workers can have made them
            await self._sweep()
            if left_behind:
                await backends.forget(redis, left_behind)
        await self._choose_sandbox()
        await self._start_api_and_workers(redis)
        if settings.dashboard:
            await self._start_dashboard(redis)
        if not model.done():
            self._say(f"API and workers are ready; waiting for vLLM, which logs to {programs.logs(settings)}")
        local = await self._told(model, monotonic())
        await self._join_backends([*given, *([local] if local else [])])

    async def _choose_sandbox(self) -> None:
        """Once for all workers, so that they agree."""
        if self.settings.sandbox != AUTO:
            return
        argv = programs.choose(self.settings)
        process = await asyncio.create_subprocess_exec(*argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        said, _ = await process.communicate()
        kind, _, why = said.decode().partition("\n")
        if process.returncode != 0:
            raise StartFailed(f"{' '.join(argv)}: exit code {process.returncode}; or name a kind with --sandbox")
        self.settings = msgspec.structs.replace(self.settings, sandbox=kind)
        self._say(why.strip())

    async def _start_redis(self) -> RedisSettings:
        settings = self.settings
        if settings.redis is None and settings.replicas:
            program, directory = binary(settings.redis_kind), settings.state_dir / "replicas"
            about: dict[str, Any] = {"namespace": settings.namespace, "replicas": settings.replicas}
            self._chain = Chain(directory, program, say=self._say, **about)
            self.redis = await self._stack.enter_async_context(self._chain.running())
            self._stack.enter_context(place.left(settings.state_dir, self.redis, own=True))
        elif settings.redis is None:
            program = binary(settings.redis_kind)
            directory = settings.state_dir / "redis"
            self._redis_child = RedisChild(directory, program, namespace=settings.namespace, say=self._say)
            self.redis = await self._stack.enter_async_context(self._redis_child.running())
            if files := payloads_of(self.redis):
                files.directory.mkdir(mode=0o700, exist_ok=True)
            if (archive := archive_of(self.redis)) and find_spec("pyarrow"):  # one user's own disk: history is on
                archive.mkdir(mode=0o700, exist_ok=True)
        else:
            self.redis = settings.redis
        return self.redis

    async def _start_api_and_workers(self, redis: RedisSettings) -> None:
        port = self.settings.port or free_port()
        self.url, self.reached = programs.urls(self.settings.host, port)
        self._stack.enter_context(place.listening(self.settings.state_dir, self.url))
        beside = [await self._spawn(programs.api(self.settings, redis, port), API_GRACE_S)]
        if self.settings.compat_port is not None:
            port = self.settings.compat_port or free_port()
            self.compat_url = f"http://127.0.0.1:{port}"
            beside.append(await self._spawn(programs.compat(self.settings, redis, port), API_GRACE_S))
        keeper = programs.keeper(self.settings, redis)
        if keeper is not None:
            beside.append(await self._spawn(keeper, KEEPER_GRACE_S))
        workers = [self._child(program) for program in programs.workers(self.settings, redis)]
        self._stack.push_async_callback(self._stop_together, workers)
        for worker in workers:
            await worker.start()
        await self._until_ready(beside, workers, redis)
        for child in [*beside, *workers]:
            self._keep(child)

    async def _start_dashboard(self, redis: RedisSettings) -> None:
        port, token = free_port(), dashboard_token()
        pair = programs.dashboard(
            programs.logs(self.settings), redis, port=port, database=DATABASE.default, token=token
        )
        children = [await self._spawn(program, DASHBOARD_GRACE_S) for program in pair]
        url = f"http://127.0.0.1:{port}"

        async def shown() -> bool:
            return await answers(url, token)

        await self._wait_for(shown, children, self.settings.start_s)
        for child in children:
            self._keep(child)
        self.dashboard = f"{url}/?token={token}"

    async def _stop_together(self, workers: Sequence[Child]) -> None:
        await asyncio.gather(*(worker.stop(self.settings.grace_s + 10) for worker in workers))

    async def _until_ready(self, beside: Sequence[Child], workers: Sequence[Child], redis: RedisSettings) -> None:
        client = connect(redis)
        store = Store(client, Keys(redis.namespace), name="prorl-mq", outage_ms=5_000)

        async def seen() -> bool:
            alive = {worker.pid for worker in await living(store)}
            served = [f"{self.url}/readyz", *([f"{self.compat_url}/healthz"] if self.compat_url else [])]
            return all(worker.pid in alive for worker in workers) and all([await answers(url) for url in served])

        try:
            await self._wait_for(seen, [*beside, *workers], self.settings.start_s)
        finally:
            await client.aclose()

    async def _told(self, model: "asyncio.Task[str | None]", began: float) -> str | None:
        """The local backend's address; until it has one, its last log line is printed."""
        while not (await asyncio.wait({model}, timeout=TELL_S))[0]:
            said = [line for child in self._children if child.program.name == "vllm" for line in child.last_lines(1)]
            self._say(
                f"vLLM has been starting for {monotonic() - began:.0f} s; last line: {''.join(said)[:160] or 'none'}"
            )
        return await model

    @property
    def _local_backend_file(self) -> Path:
        return self.settings.state_dir / "local-backend"

    async def _serve_model(self) -> str | None:
        """Starts the local backend and waits for its health; the address to reach it by."""
        model = self.settings.local_backend
        if model is None:
            return None
        port = free_port()
        address = f"http://127.0.0.1:{port}"
        reached = await self._recorded(address)
        self._local_backend_file.write_text(reached)
        child = await self._spawn(programs.vllm(self.settings, model, port), BACKEND_GRACE_S)

        async def healthy() -> bool:
            return await answers(f"{address}/health")

        async def rejoin() -> None:
            await self._wait_for(healthy, [child], self.settings.backend_start_s, LOOK_AT_MODEL_S)
            await self._join_backends([reached])

        await self._wait_for(healthy, [child], self.settings.backend_start_s, LOOK_AT_MODEL_S)
        self._keep(child, rejoin)
        return reached

    async def _recorded(self, address: str) -> str:
        """The address of a proxy that keeps the backend's answers, if they are to be kept."""
        if self.settings.answers is None:
            return address
        return (await self._stack.enter_async_context(Recorder(address, self.settings.answers))).address

    async def _join_backends(self, addresses: Sequence[str]) -> None:
        if addresses and self.redis:
            await backends.join(self.redis, self.url, self.token or os.environ.get(local_token.TOKEN), addresses)
        self.backends = list(dict.fromkeys([*self.backends, *addresses]))

    async def _wait_for(
        self, condition: Callable[[], Awaitable[bool]], needed: Sequence[Child], limit_s: float, look_s: float = LOOK_S
    ) -> None:
        try:
            async with asyncio.timeout(limit_s):
                while not await condition():
                    for child in needed:
                        if child.ended is not None:
                            raise StartFailed(child.obituary())
                    await asyncio.sleep(look_s)  # nothing tells when another process is ready
        except TimeoutError:
            names = ", ".join(child.program.name for child in needed)
            logs = programs.logs(self.settings)
            raise StartFailed(f"{names}: not ready within {limit_s:g} s; the logs are in {logs}") from None

    async def _spawn(self, program: Program, grace_s: float) -> Child:
        child = self._child(program)
        self._stack.push_async_callback(child.stop, grace_s)
        await child.start()
        return child

    def _child(self, program: Program) -> Child:
        assert self._guard is not None
        child = Child(program, say=self._say, guard=self._guard)
        self._children.append(child)
        return child

    def _keep(self, child: Child, restarted: Callable[[], Awaitable[None]] | None = None) -> None:
        keeper = asyncio.create_task(child.keep(restarted), name=f"keep {child.program.name}")
        self._keepers.append(keeper)
        self._stack.push_async_callback(_cancelled, keeper)

    async def _sweep(self) -> None:
        argv = programs.sweep(self.settings)
        if argv is not None:
            process = await asyncio.create_subprocess_exec(*argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            await process.wait()


async def _cancelled(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    await asyncio.wait({task})  # a failure of its own has been raised where it was awaited, or said
    if not task.cancelled():
        task.exception()


async def answers(url: str, token: str = "") -> bool:
    """One look. No certificate authorities are loaded: only loopback is asked, and that costs 20 ms or more."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    plain = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        async with httpx.AsyncClient(timeout=5.0, trust_env=False, headers=headers, verify=plain) as client:
            return (await client.get(url)).is_success
    except httpx.HTTPError:
        return False
