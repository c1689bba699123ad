"""Jobs that wait for an image: they are put aside with the reason, and continue when it is there."""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeVar

from prorl_mq import chance
from prorl_mq.clock import monotonic
from prorl_mq.schema.ids import JobRef, group_of, run_of
from prorl_mq.store import workers
from prorl_mq.store.images import records as images
from prorl_mq.store.images.records import ImageRecord
from prorl_mq.store.store import Store
from sandbox.errors import ImageUnavailable
from sandbox.images.cache import Image, ImageCache
from sandbox.images.source import image_source
from sandbox.protocol import SandboxSpec
from workers import metrics
from workers.node.images.fetches import Fetches
from workers.postponed import Postponed

FRESH_S: Final = 30.0  # how long this node's record of a failure counts; then the image is tried again
NOTED_S: Final = 15.0  # how old the record of a fetch under way may be
NODES_S: Final = 5.0
ELSEWHERE_MS: Final = 200
DECLINES: Final = 5  # times that this node leaves a job to nodes which have its image
REMEMBERED: Final = 10_000  # jobs
LEAST_MS, MOST_MS = 500, 10_000  # of a wait
V = TypeVar("V")


class ImageWaits:
    """Asked before each sandbox is made."""

    def __init__(self, store: Store, cache: ImageCache, fetches: Fetches, node: str, *, bounded: bool = True) -> None:
        """`bounded`: jobs wait for room; not where they hold images already, which would wait for each other."""
        self._bounded = bounded
        self._store = store
        self._cache = cache
        self._fetches = fetches
        self._node = node
        self._pins: OrderedDict[JobRef, set[str]] = OrderedDict()  # images of each job
        self._declined: OrderedDict[JobRef, int] = OrderedDict()
        self._failed: OrderedDict[JobRef, int] = OrderedDict()  # the failure that has cost each an attempt
        self._until: OrderedDict[JobRef, float] = OrderedDict()  # jobs that wait, and when each comes back
        self._nodes: tuple[Sequence[str], float] = ((), 0.0)
        self._fits = (True, 0.0)
        metrics.image_waiting_jobs.set_function(self._waiting)

    async def ready(self, spec: SandboxSpec) -> Image | None:
        """The image if it is on this node, in use until the caller closes it, so that it cannot go before its sandbox
        has begun; None for one that is not of the cache. Raises `Postponed` while it is not there, `ImageUnavailable`
        if it cannot be had, `SandboxError` for a name that is none.
        """
        name = spec.image
        if name is None or await asyncio.to_thread(Path(name).is_dir):
            return None
        source = await asyncio.to_thread(image_source, name)
        ref = JobRef(spec.owner.partition(" ")[0])
        if (image := self._cache.hold(source.key)) is not None:
            try:
                await self._pin(ref, source.key)
            except BaseException:
                image.close()
                raise
            for memory in (self._until, self._declined, self._failed):
                memory.pop(ref, None)
            return image
        raise await self._why_not(ref, source.uri, source.key)

    async def _why_not(self, ref: JobRef, name: str, key: str) -> Exception:
        now_ms = await self._store.now_ms()
        found = await images.look(self._store, key, await self._living())
        here = next((each for each in found if each.node == self._node), None)
        if here is not None and here.state == "failed" and now_ms - here.ms < FRESH_S * 1000:
            self._until.pop(ref, None)
            if here.final or self._failed.get(ref) != here.ms:
                _remember(self._failed, ref, here.ms)
                return ImageUnavailable(here.why, final=here.final)
            again_ms = round(FRESH_S * 1000) - (now_ms - here.ms)  # a failure costs a job one attempt, and not all
            return Postponed(f"image {name}: it is tried again: {here.why}", self._waits(ref, max(LEAST_MS, again_ms)))
        others = [each.node for each in found if each.state == "ready" and each.node != self._node]
        if others and self._declines(ref):
            return Postponed(f"image {name}: left to node {others[0]}, which has it", self._waits(ref, ELSEWHERE_MS))
        if not self._fetches.turns.take(key, run_of(group_of(ref))):
            return Postponed(f"image {name}: node {self._node} fetches others first", self._waits(ref, LEAST_MS * 2))
        try:
            if ref not in self._pins and self._bounded and not await self._room():
                why = f"it waits for room on node {self._node}: images that jobs name fill PRORL_IMAGES_BYTES"
                return Postponed(f"image {name}: {why}", self._waits(ref, MOST_MS // 2))
            await self._pin(ref, key)
            self._fetches.start(name, key)
        finally:
            self._fetches.put_back(key)
        under_way = here if here is not None and now_ms - here.ms < NOTED_S * 1000 and here.state != "ready" else None
        return Postponed(told(name, self._node, under_way), self._waits(ref, wait_ms(under_way)))

    async def _room(self) -> bool:
        """True unless images of jobs that are not over fill the cache: then another one would fill the disk."""
        there, until = self._fits
        if monotonic() > until:
            there = await self._cache.make_room()
            self._fits = (there, monotonic() + NODES_S)
        return there

    async def _pin(self, ref: JobRef, key: str) -> None:
        """Once for each job and image, which stays until the job is over."""
        noted = self._pins.get(ref, set())
        if key not in noted:
            await images.pin(self._store, ref, key)
            _remember(self._pins, ref, noted | {key})

    async def _living(self) -> Sequence[str]:
        """Names of nodes with a living worker, this one among them."""
        nodes, until = self._nodes
        if monotonic() > until:
            nodes = sorted({self._node, *(each.node for each in await workers.living(self._store))})
            self._nodes = (nodes, monotonic() + NODES_S)
        return nodes

    def _declines(self, ref: JobRef) -> bool:
        """True while the job is left to others; not without limit, for they may have no room for it."""
        _remember(self._declined, ref, self._declined.get(ref, 0) + 1)
        return self._declined[ref] <= DECLINES

    def _waits(self, ref: JobRef, ms: int) -> int:
        ms = round(ms * (1 + chance.fraction() / 4))  # so that jobs do not come back together
        _remember(self._until, ref, monotonic() + 2 * ms / 1000)
        return ms

    def _waiting(self) -> float:
        now = monotonic()
        return float(sum(until > now for until in self._until.values()))


def told(name: str, node: str, record: ImageRecord | None) -> str:
    """Says how far a fetch is."""
    if record is None or not (record.total or record.state == "unpacking"):
        return f"image {name}: its fetch by node {node} begins"
    if record.state == "unpacking":
        return f"image {name}: it is unpacked by node {node}"
    share = 100 * record.done // record.total
    return f"image {name}: {share} % of {size(record.total)} by node {node}"


def size(amount: int) -> str:
    """Bytes for people: `1.2 GB`."""
    for unit, least in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if amount >= least:
            return f"{amount / least:.1f} {unit}"
    return f"{amount} bytes"


def wait_ms(record: ImageRecord | None) -> int:
    """Until about half of the rest is there, within bounds."""
    if record is None or record.rate <= 0 or not record.total:
        return LEAST_MS * 2
    return round(min(MOST_MS, max(LEAST_MS, 500 * (record.total - record.done) / record.rate)))


def _remember(memory: "OrderedDict[JobRef, V]", key: JobRef, value: V) -> None:
    memory[key] = value
    memory.move_to_end(key)
    while len(memory) > REMEMBERED:
        memory.popitem(last=False)
