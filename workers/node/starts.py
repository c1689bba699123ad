"""Starts of sandboxes: counted for their image and for this node, which rests while nothing starts on it."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from prorl_mq.clock import monotonic
from prorl_mq.rules import node_guard
from prorl_mq.rules.node_guard import Starts
from prorl_mq.store import breakers
from prorl_mq.store.breakers import BreakerKey
from sandbox.errors import NoBaseImage, NotNow, SandboxError
from sandbox.protocol import Sandbox, SandboxHandle, SandboxLimits, SandboxProvider, SandboxSpec
from workers import metrics
from workers.inference.waits import Waits
from workers.node.images.waiting import ImageWaits
from workers.postponed import Postponed, SharedBreakers, postponed, told

ELSEWHERE_MS: Final = 1_000
CANARY: Final = {"CANARY": "1"}  # in its environment: no keeper has such a one warm, so that it is started now
CANARY_LIMITS: Final = SandboxLimits(wall_s=300)
log = logging.getLogger("workers.node.starts")


class NodeGuard:
    """The guard of this process's node. `waits` tells it to `prorl-mq status`."""

    def __init__(self, node: str, waits: Waits) -> None:
        self._node = node
        self._waits = waits
        self._starts = Starts()
        self._why = ""
        self._trying = asyncio.Lock()
        metrics.node_shut.set_function(lambda: float(self._starts.shut))

    @property
    def shut(self) -> bool:
        return self._starts.shut

    def takes(self, free: int, held: int) -> int:
        """Jobs that may be read now."""
        return self._starts.takes(free, held, monotonic())

    async def failed(self, provider: SandboxProvider, owner: str) -> str:
        """Counts a start of `owner` that failed. Why the node is shut now; empty: it is not."""
        self._starts = node_guard.failed(self._starts)
        if self._starts.suspect(monotonic()):
            async with self._trying:
                if self._starts.suspect(monotonic()):  # nobody else has decided meanwhile
                    await self._decide(provider, owner)
        return self._why if self._starts.shut else ""

    async def _decide(self, provider: SandboxProvider, owner: str) -> None:
        """By a sandbox of the base image, which no row has a part in."""
        error = await _canary(provider, owner)
        if error is None:
            log.info("node %s starts sandboxes of its base image: the images are to blame", self._node)
            self.started()
            return
        self._starts = node_guard.shut(self._starts, monotonic())
        self._why = f"node {self._node} starts no sandbox: {told(error)}"
        log.warning("%s; it takes no job for %.0f s", self._why, self._starts.until_s - monotonic())
        self._waits.unable("sandboxes", self._why)

    def started(self) -> None:
        if self._starts.shut:
            log.warning("node %s starts sandboxes again", self._node)
            self._waits.unable("sandboxes", "")
        self._starts = Starts()


class WatchedProvider:
    """`SandboxProvider` over another one. It raises `Postponed` where an image or this node is known to fail, where the
    image is not there yet, and where the server of remote sandboxes has no room, or does not answer.
    """

    def __init__(
        self, provider: SandboxProvider, shared: SharedBreakers, guard: NodeGuard, images: ImageWaits | None = None
    ) -> None:
        self._images = images
        self._provider = provider
        self._shared = shared
        self._guard = guard

    @property
    def kind(self) -> str:
        return self._provider.kind

    @property
    def node(self) -> str:
        return self._provider.node

    async def create(self, spec: SandboxSpec) -> Sandbox:
        image = await self._images.ready(spec) if self._images is not None else None
        try:
            return await self._created(spec)
        finally:
            if image is not None:
                image.close()

    async def _created(self, spec: SandboxSpec) -> Sandbox:
        key = breakers.image(spec.image) if spec.image else None
        tried = await self._shared.check(key) if key is not None else []
        try:
            box = await self._provider.create(spec)
        except NotNow as why:
            await self._shared.put_back(tried)
            raise Postponed(str(why), round(why.retry_after_s * 1000), of_node=True) from why
        except SandboxError as error:
            await self._judge(spec, error, tried)
            raise
        self._guard.started()
        if key is not None:
            await self._shared.succeeded(key)
        return box

    async def attach(self, handle: SandboxHandle) -> Sandbox:
        return await self._provider.attach(handle)

    async def destroy(self, handle: SandboxHandle) -> None:
        await self._provider.destroy(handle)

    async def aclose(self) -> None:
        await self._provider.aclose()

    async def _judge(self, spec: SandboxSpec, error: SandboxError, tried: Sequence[BreakerKey]) -> None:
        """A start that failed on a node that fails says nothing about the image, nor about the task family."""
        if why := await self._guard.failed(self._provider, spec.owner):
            await self._shared.put_back(tried)
            raise Postponed(why, ELSEWHERE_MS, error, of_node=True) from error
        if spec.image is not None:
            seen = await self._shared.failed(breakers.image(spec.image), error)
            if seen.open:
                raise postponed(seen, error) from error


async def _canary(provider: SandboxProvider, owner: str) -> Exception | None:
    """Why a sandbox of the base image does not start. Where there is no base image, images alone are to blame."""
    try:
        box = await provider.create(SandboxSpec(owner=owner, environment=CANARY, limits=CANARY_LIMITS))
    except NoBaseImage:
        return None
    except (SandboxError, OSError) as error:
        return error
    try:
        await asyncio.shield(box.close())
    except SandboxError as error:
        log.warning("%s", error)
    return None
