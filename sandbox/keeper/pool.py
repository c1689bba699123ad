"""Warm sandboxes of one node and service: started ahead of need, each given away once.

Which there are is written on disk: their labels name the pool as owner. What this process remembers of them is a copy.
"""

import asyncio
import contextlib
import logging
import os
import statistics
from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from pathlib import Path
from time import monotonic

from sandbox.errors import SandboxError
from sandbox.host.process import is_alive
from sandbox.keeper.memory import free_share
from sandbox.keeper.pool_demand import WarmDemand
from sandbox.keeper.pool_shape import Shape, shape_in
from sandbox.lifetime import destroy, label, wire
from sandbox.lifetime.owner import OwnerKind, parse
from sandbox.protocol import SandboxHandle, SandboxProvider

PING_S = 0.5
LOOK_S = 5.0  # how often it looks for what no request tells: members that died, memory, demand that is over
AT_ONCE = max(1, (os.cpu_count() or 1) // 2)  # starts; the other half of the machine is the jobs'
ROOMY, TIGHT = 0.2, 0.1  # shares of free memory: above the first it starts sandboxes, below the second it has none
KEPT = 256
log = logging.getLogger(__name__)


class WarmPool:
    """`adopt` what an earlier one left, `run` in a task, `take` at any time; `aclose` destroys the members."""

    def __init__(self, provider: SandboxProvider, state_dir: Path, service: str) -> None:
        self._provider = provider
        self._state_dir = state_dir
        self._service = service
        self._room: int | None = None
        self._demand = WarmDemand()
        self._warm: defaultdict[Shape, deque[SandboxHandle]] = defaultdict(deque)
        self._starting: Counter[Shape] = Counter()
        self._given_up: list[SandboxHandle] = []
        self._changed = asyncio.Event()
        self._start_ms: deque[float] = deque(maxlen=KEPT)
        self._hand_out_ms: deque[float] = deque(maxlen=KEPT)
        self.hits = 0
        self.misses = 0

    @property
    def kind(self) -> str:
        return self._provider.kind

    @property
    def warm(self) -> int:
        return sum(map(len, self._warm.values()))

    @property
    def medians_ms(self) -> tuple[float | None, float | None]:
        """Of starting a sandbox, and of handing one out."""
        start, hand_out = (statistics.median(each) if each else None for each in (self._start_ms, self._hand_out_ms))
        return start, hand_out

    def make_room(self, room: int) -> None:
        """Sets how many it may hold. Until this is known it neither starts nor destroys any."""
        if room != self._room:
            self._room = room
            self._changed.set()

    async def adopt(self) -> None:
        """Takes over the members of a pool whose keeper has died: so many were wanted. Unhealthy ones are destroyed."""
        found = await asyncio.to_thread(self._members)
        healthy = await asyncio.gather(*(answers(handle) for _, handle in found))
        for (shape, handle), well in zip(found, healthy, strict=True):
            if well and shape is not None and handle.kind == self._provider.kind:
                self._warm[shape].append(handle)
                self._demand.asked(shape, monotonic())
            else:
                self.give_up(handle)

    async def take(self, shape: Shape, owner: str) -> SandboxHandle | None:
        """A healthy sandbox that belongs to `owner` from now on; None where no warm one is left."""
        began = monotonic()
        self._demand.asked(shape, began)
        self._changed.set()
        while self._warm[shape]:
            handle = self._warm[shape].popleft()
            directory = Path(handle.directory)
            if await answers(handle) and await asyncio.to_thread(label.relabel, directory, handle.sandbox_id, owner):
                self.hits += 1
                self._hand_out_ms.append((monotonic() - began) * 1000)
                return handle
            self.give_up(handle)
        self.misses += 1
        return None

    def give_up(self, handle: SandboxHandle) -> None:
        """Has a sandbox destroyed that is of no use to anybody."""
        self._given_up.append(handle)
        self._changed.set()

    async def run(self) -> None:
        """Keeps as many as are wanted. Never returns."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._changed.clear()
                if self._room is not None:
                    self._tend(self._room, group)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await self._changed.wait()

    async def aclose(self) -> None:
        """Destroys the members; what was given away lives on."""
        members = await asyncio.to_thread(self._members)
        await asyncio.gather(*(self._destroy(handle) for _, handle in members))

    def _tend(self, room: int, group: asyncio.TaskGroup) -> None:
        free = free_share()
        targets = self._demand.targets(monotonic(), room) if free > TIGHT else {}
        for shape, handles in self._warm.items():
            living = [handle for handle in handles if is_alive(handle.pid, handle.pid_started)]
            kept = living[-targets[shape] :] if targets.get(shape) else []
            self._given_up += [handle for handle in handles if handle not in kept]
            self._warm[shape] = deque(kept)
        for shape in self._missing(targets) if free > ROOMY else ():
            self._starting[shape] += 1
            group.create_task(self._start(shape), name="warm start")
        for handle in self._given_up:
            group.create_task(self._destroy(handle), name="destroy")
        self._given_up = []

    def _missing(self, targets: dict[Shape, int]) -> Iterable[Shape]:
        """Which shapes to start now."""
        missing = [
            shape
            for shape, target in targets.items()
            for _ in range(target - len(self._warm[shape]) - self._starting[shape])
        ]
        return missing[: AT_ONCE - self._starting.total()]

    async def _start(self, shape: Shape) -> None:
        began = monotonic()
        try:
            sandbox = await self._provider.create(shape.spec(self._service))
        except (SandboxError, OSError, ValueError) as error:
            self._demand.forget(shape)
            log.warning("no warm sandboxes of %s until one is asked for again: %s", shape, error)
        else:
            self._warm[shape].append(sandbox.handle)
            self._start_ms.append((monotonic() - began) * 1000)
        finally:
            self._starting[shape] -= 1
            self._changed.set()

    async def _destroy(self, handle: SandboxHandle) -> None:
        try:
            await destroy.destroy(handle)
        except SandboxError as error:
            self._given_up.append(handle)  # and looked at again later
            log.warning("%s", error)

    def _members(self) -> list[tuple[Shape | None, SandboxHandle]]:
        """Every finished sandbox of this pool, as the disk says."""
        found = []
        for directory, made in label.labelled(self._state_dir):
            owner = parse(made.owner)
            if owner is None or made.unfinished:
                continue
            if (owner.kind, owner.service, made.node) == (OwnerKind.POOL, self._service, self._provider.node):
                found.append((shape_in(owner), label.handle_of(directory, made)))
        return found


async def answers(handle: SandboxHandle) -> bool:
    """True if a sandbox is alive, ready for commands, and prompt."""
    try:
        async with asyncio.timeout(PING_S):
            answer = await wire.call(handle, {"op": "ping"}, timeout_s=PING_S)
    except (SandboxError, OSError, TimeoutError):
        return False
    return bool(answer.header.get("configured"))
