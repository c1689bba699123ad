"""Many sandboxes started and stopped, several at a time: how many a second, and what is left behind."""

import asyncio
import ctypes
import os
import time
from pathlib import Path

import msgspec

from bench import measure
from bench.sandbox.contender import Setting
from bench.sandbox.ours import SPEC, provider_of
from sandbox.host.process import start_time
from sandbox.lifetime import label
from sandbox.protocol import SandboxProvider

PR_SET_CHILD_SUBREAPER = 36
SETTLED_S, LOOK_S = 10.0, 0.02
LIBC = ctypes.CDLL(None)


class Churn(msgspec.Struct, frozen=True, kw_only=True):
    """What is left counts what was not there before."""

    kind: str
    sandboxes: int
    concurrency: int
    per_s: float
    ready_p50_ms: float
    stop_p50_ms: float
    stop_p99_ms: float
    left_processes: int
    left_mounts: int
    left_files: int
    left_descriptors: int

    @property
    def left(self) -> int:
        return self.left_processes + self.left_mounts + self.left_files + self.left_descriptors


class Traces(msgspec.Struct, frozen=True, kw_only=True):
    """What sandboxes can leave: descendants of this process, mounts it sees, files, its own descriptors."""

    processes: set[tuple[int, str]]
    mounts: set[str]
    files: set[str]
    descriptors: set[str]


def traces(state_dir: Path) -> Traces:
    tree = ((pid, start_time(pid)) for pid in measure.process_tree(os.getpid()))
    return Traces(
        processes={(pid, started) for pid, started in tree if started is not None},
        mounts=set(Path("/proc/self/mountinfo").read_text().splitlines()),
        files={str(path) for path in label.root(state_dir).rglob("*")},
        descriptors=set(map(str, Path("/proc/self/fd").iterdir())),
    )


async def churn(kind: str, setting: Setting, *, sandboxes: int, concurrency: int) -> Churn:
    """Whatever loses its parent becomes a child of this process for as long as it lives, so that none is missed."""
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    state_dir = setting.place(f"churn-{kind}")
    provider = provider_of(kind, state_dir, setting.tools)
    slots = asyncio.Semaphore(concurrency)
    try:
        await _life(provider, slots)  # what is made once a process is no leak
        before, began = traces(state_dir), time.perf_counter()
        lives = await asyncio.gather(*(_life(provider, slots) for _ in range(sandboxes)))
        seconds = time.perf_counter() - began
        left = await _left(state_dir, before)
    finally:
        await provider.aclose()
    stops = [stop for _, stop in lives]
    return Churn(
        kind=kind,
        sandboxes=sandboxes,
        concurrency=concurrency,
        per_s=sandboxes / seconds,
        ready_p50_ms=1e3 * measure.percentile([ready for ready, _ in lives], 0.5),
        stop_p50_ms=1e3 * measure.percentile(stops, 0.5),
        stop_p99_ms=1e3 * measure.percentile(stops, 0.99),
        left_processes=len(left.processes),
        left_mounts=len(left.mounts),
        left_files=len(left.files),
        left_descriptors=len(left.descriptors),
    )


async def _life(provider: SandboxProvider, slots: asyncio.Semaphore) -> tuple[float, float]:
    async with slots:
        began = time.perf_counter()
        sandbox = await provider.create(SPEC)
        await sandbox.bash("true")
        ready = time.perf_counter()
        await sandbox.close()
        return ready - began, time.perf_counter() - ready


async def _left(state_dir: Path, before: Traces) -> Traces:
    """What is still there when it has had time to end; a process that only waits to be collected does not live."""
    deadline = time.monotonic() + SETTLED_S
    while True:
        now = traces(state_dir)
        left = Traces(
            processes=now.processes - before.processes,
            mounts=now.mounts - before.mounts,
            files=now.files - before.files,
            descriptors=now.descriptors - before.descriptors,
        )
        if not (left.processes or left.descriptors) or time.monotonic() > deadline:
            return left
        await asyncio.sleep(LOOK_S)
