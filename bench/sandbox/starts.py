"""From nothing to the first command's result, and to the end: warm, cold, and the isolators by themselves."""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from bench.redis_server import die_with_parent
from bench.sandbox.contender import Contender, Measure, Samples, Setting
from bench.sandbox.ours import NODE, SERVICE, SPEC, provider_of
from bench.sandbox.peer import ROOT
from bench.sandbox.peer_loop import timed as timed_blocking
from bench.sandbox.raw import Apptainer, bubblewrap, run
from sandbox.keeper import place as keeper_place
from sandbox.keeper import wire
from sandbox.keeper.client import KeptProvider
from sandbox.protocol import SandboxProvider

READY, STOP = "ready for the first command", "stop"
WARM_S, LOOK_S = 30.0, 0.005
Ready = Callable[[], Awaitable[object]]


async def starts(provider: SandboxProvider, count: int, before: Ready | None = None) -> Samples:
    ready, stop = [], []
    for _ in range(count):
        if before is not None:
            await before()
        began = time.perf_counter()
        sandbox = await provider.create(SPEC)
        said = await sandbox.bash("true")
        done = time.perf_counter()
        await sandbox.close()
        stop.append(time.perf_counter() - done)
        ready.append(done - began)
        assert said.exit_code == 0, said
    return {READY: ready, STOP: stop}


@asynccontextmanager
async def cold(setting: Setting, *, kind: str) -> AsyncIterator[Measure]:
    provider = provider_of(kind, setting.place(f"cold-{kind}"), setting.tools)
    try:
        yield partial(starts, provider)
    finally:
        await provider.aclose()


@asynccontextmanager
async def kept(setting: Setting, kind: str, state_dir: Path) -> AsyncIterator[None]:
    """A keeper of this state directory."""
    argv = [sys.executable, "-m", "bench.sandbox.keeper_process", kind, str(state_dir), str(setting.tools)]
    keeper = await asyncio.create_subprocess_exec(
        *argv, stdin=asyncio.subprocess.PIPE, preexec_fn=die_with_parent, cwd=setting.scratch,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    try:
        yield
    finally:
        assert keeper.stdin is not None
        keeper.stdin.close()
        await keeper.wait()


async def until_warm(place: Path) -> None:
    """Asks the keeper until it has a warm one: nothing tells when it has tended its pool."""
    async with asyncio.timeout(WARM_S):
        while True:
            with contextlib.suppress(OSError):
                if (await wire.counts(place)).warm:
                    return
            await asyncio.sleep(LOOK_S)


@asynccontextmanager
async def warm(setting: Setting, *, kind: str) -> AsyncIterator[Measure]:
    """As INIT gets them: from the keeper's process over its socket, the replacement being started meanwhile."""
    state_dir = setting.place(f"warm-{kind}")
    place = keeper_place.place(state_dir, SERVICE, NODE)
    provider = KeptProvider(provider_of(kind, state_dir, setting.tools), state_dir, SERVICE)
    try:
        async with kept(setting, kind, state_dir):
            async with asyncio.timeout(WARM_S):
                while True:
                    with contextlib.suppress(OSError):
                        await wire.counts(place)
                        break
                    await asyncio.sleep(LOOK_S)
            await starts(provider, 1)  # so that the pool knows what is wanted
            yield partial(starts, provider, before=partial(until_warm, place))
    finally:
        await provider.aclose()


@asynccontextmanager
async def instance(setting: Setting, *, name: str) -> AsyncIterator[Measure]:
    """`apptainer instance start`, the first `exec` in it, and `apptainer instance stop`."""
    apptainer = Apptainer(setting, setting.place(name))

    async def measure(count: int) -> Samples:
        ready, stop = [], []
        for _ in range(count):
            began = time.perf_counter()
            with apptainer.instance() as one:
                run(apptainer.enter(one, ["/bin/true"]))
                done = time.perf_counter()
            stop.append(time.perf_counter() - done)
            ready.append(done - began)
        return {READY: ready, STOP: stop}

    yield measure


@asynccontextmanager
async def once(_: Setting, *, argv: Callable[[Setting], Sequence[str]]) -> AsyncIterator[Measure]:
    """The isolator runs one program and is gone: no session is left to talk to."""
    command = argv(_)

    async def measure(count: int) -> Samples:
        return {READY: timed_blocking(partial(run, command), count)}

    yield measure


def _apptainer(setting: Setting) -> list[str]:
    return Apptainer(setting, setting.place("once-apptainer")).once(["/bin/true"])


def contenders() -> list[Contender]:
    first, second = "apptainer: ours, cold", "bubblewrap: ours, cold"
    return [
        Contender(name=first, samples=20, make=partial(cold, kind="apptainer")),
        Contender(name="apptainer: ours, warm", samples=8, make=partial(warm, kind="apptainer"), ours=first),
        Contender(name="apptainer: instance", samples=3, make=partial(instance, name="instance"), ours=first),
        Contender(name="apptainer: exec true, no session", samples=8, make=partial(once, argv=_apptainer), ours=first),
        Contender(name=second, samples=20, make=partial(cold, kind="bubblewrap")),
        Contender(name="bubblewrap: ours, warm", samples=8, make=partial(warm, kind="bubblewrap"), ours=second),
        Contender(
            name="bubblewrap: true, no session", samples=20, ours=second,
            make=partial(once, argv=lambda _: bubblewrap(["/bin/true"])),
        ),
    ]  # fmt: skip
