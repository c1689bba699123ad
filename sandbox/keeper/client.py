"""Sandboxes as a worker gets them: a warm one of the node's keeper, else one of its own making."""

import asyncio
import logging
from pathlib import Path

import msgspec

from sandbox.errors import SandboxError
from sandbox.keeper import place
from sandbox.keeper.pool_shape import Shape, shape_of
from sandbox.keeper.wire import ACKNOWLEDGED, Given, Take, ask, connected
from sandbox.lifetime.owner import Owner, OwnerKind
from sandbox.protocol import REMOTE, Sandbox, SandboxHandle, SandboxProvider, SandboxSpec

ANSWER_S = 2.0
log = logging.getLogger(__name__)


class KeptProvider:
    """`SandboxProvider` over another one. The service's name goes into every label that it has made."""

    def __init__(self, provider: SandboxProvider, state_dir: Path, service: str) -> None:
        self._provider = provider
        self._service = service
        self._place = place.place(state_dir, service, provider.node)
        self._alone = False

    @property
    def kind(self) -> str:
        return self._provider.kind

    @property
    def node(self) -> str:
        return self._provider.node

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """`spec.owner` is the attempt's name within the service."""
        spec = msgspec.structs.replace(spec, owner=Owner(OwnerKind.JOB, self._service, spec.owner).text)
        shape = shape_of(spec) if self.kind != REMOTE else None  # which are no node's, so no keeper has any
        warm = await self._warm(shape, spec.owner) if shape is not None else None
        return warm or await self._provider.create(spec)

    async def attach(self, handle: SandboxHandle) -> Sandbox:
        return await self._provider.attach(handle)

    async def destroy(self, handle: SandboxHandle) -> None:
        await self._provider.destroy(handle)

    async def aclose(self) -> None:
        await self._provider.aclose()

    async def _warm(self, shape: Shape, owner: str) -> Sandbox | None:
        """If this is cancelled before the acknowledgement, the keeper destroys what it gave."""
        try:
            async with asyncio.timeout(ANSWER_S), connected(self._place) as connection:
                given = await ask(connection, Take(kind=self.kind, shape=shape, owner=owner), Given)
                self._alone = False
                if given.handle is None:
                    return None
                sandbox = await self._provider.attach(given.handle)
                connection.send(ACKNOWLEDGED)
                return sandbox
        except SandboxError as error:
            log.warning("a warm sandbox was of no use, another is made: %s", error)
            return None
        except (OSError, TimeoutError, msgspec.DecodeError) as error:
            if not self._alone:
                log.warning(
                    "no keeper at %s, sandboxes are made here: %s: %s", self._place, type(error).__name__, error
                )
            self._alone = True
            return None
