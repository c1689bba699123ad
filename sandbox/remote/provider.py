"""The provider of sandboxes of another machine. Any process that reaches the server can use each of them."""

import asyncio
import contextlib
import secrets
from typing import Final

from sandbox.errors import LinkCut, NotNow, SandboxError, SandboxGone, SandboxStartFailed
from sandbox.lifetime.owner import parse
from sandbox.protocol import REMOTE, SandboxHandle, SandboxSpec
from sandbox.remote import box, messages
from sandbox.remote.access import ServerAccess
from sandbox.remote.http import RemoteServer
from sandbox.remote.patience import AWAY_S, living, patiently

CREATE_AWAY_S: Final = 20.0  # then jobs wait in their queue
CREATE_S: Final = 600.0  # for making one: the first of an image may be unpacked for minutes
LATER_S: Final = 5.0
GIVE_UP_S: Final = 5.0  # for taking back what was asked for in vain


class RemoteProvider:
    """`SandboxProvider` over a sandbox server. `node` is this process's; the handles name the server."""

    kind = REMOTE

    def __init__(self, node: str, access: ServerAccess) -> None:
        self.node = node
        self.server = RemoteServer(access)

    async def create(self, spec: SandboxSpec) -> box.RemoteSandbox:
        """Raises `NotNow` where the server has no room now, or does not answer."""
        if spec.mounts or spec.door:
            raise SandboxStartFailed(
                f"no sandbox for {spec.owner}: remote sandboxes have neither mounts nor a door; upload the files, or "
                "use a kind of this node"
            )
        name, owner = secrets.token_hex(8), parse(spec.owner)
        wanted = messages.NewSandbox(
            service=owner.service if owner is not None else "",
            owner=spec.owner,
            image=spec.image,
            environment=spec.environment,
            network=spec.network,
            limits=spec.limits,
            writable=spec.writable,
            empty=spec.empty,
        )
        try:
            hello = await patiently(self.server.hello, CREATE_AWAY_S)
            await patiently(lambda: self.server.create(name, wanted), CREATE_AWAY_S, most_s=CREATE_S)
        except LinkCut as error:
            await self._take_back(name)
            raise NotNow(str(error), LATER_S) from error
        except BaseException:
            await asyncio.shield(self._take_back(name))
            raise
        return self._box(name, hello.name)

    async def attach(self, handle: SandboxHandle) -> box.RemoteSandbox:
        if handle.kind != REMOTE:
            raise SandboxGone(
                f"sandbox {handle.sandbox_id} is of kind {handle.kind!r} on node {handle.node!r}; this worker has "
                "those of kind 'remote': start all workers of a service with the same --sandbox"
            )
        await patiently(lambda: living(self.server.hello()), AWAY_S)
        await patiently(lambda: living(self.server.look(handle.sandbox_id)), AWAY_S)
        found = box.RemoteSandbox(handle, self.server)
        await found.ping()
        return found

    async def destroy(self, handle: SandboxHandle) -> None:
        if handle.kind == REMOTE:
            await box.destroy(self.server, handle.sandbox_id)

    async def aclose(self) -> None:
        await self.server.aclose()

    async def _take_back(self, name: str) -> None:
        """Best effort: what stays there ends without a heartbeat."""
        with contextlib.suppress(SandboxError, TimeoutError):
            async with asyncio.timeout(GIVE_UP_S):
                await self.server.delete(name)

    def _box(self, name: str, server_name: str) -> box.RemoteSandbox:
        handle = SandboxHandle(
            kind=REMOTE, node=server_name, sandbox_id=name, pid=0, pid_started="",
            directory=f"{self.server.access.url}{messages.ROOT}/sandboxes/{name}",
        )  # fmt: skip
        return box.RemoteSandbox(handle, self.server)
