"""A living sandbox of another machine: as one of this node, over links that may be cut.

What may be asked twice is asked again on a new link: an act with a name is run once whoever asks, and reads change
nothing. Other acts fail with `LinkCut` once they may have begun, since nobody can say whether they have happened.
"""

import asyncio
import logging
import socket
from pathlib import Path
from typing import Any, Final

from sandbox.errors import LinkCut, SandboxError, SandboxGone
from sandbox.lifetime import transfer, wire
from sandbox.lifetime.client import SocketSandbox
from sandbox.protocol import SandboxHandle
from sandbox.remote.http import RemoteServer
from sandbox.remote.messages import TTL_S
from sandbox.remote.patience import AWAY_S, living, patiently

REPEATABLE: Final = frozenset({"ping", "fence", "stop", "mark", "read_file", "write_file", "interrupt"})
CLOSE_S: Final = 10.0
TRANSFER_S: Final = 600.0  # after which a file whose links are cut is not begun again
log = logging.getLogger(__name__)


class RemoteDial:
    """The way to one sandbox of a server: links."""

    def __init__(self, server: RemoteServer) -> None:
        self._server = server
        self._faults: list[str] = []

    async def connect(self, handle: SandboxHandle) -> socket.socket:
        return await living(self._server.link(handle.sandbox_id, self._faults))

    def heard(self, handle: SandboxHandle) -> bool:  # noqa: ARG002 - a `Dial`
        """Only its own machine knows what its control groups count."""
        return False

    def close(self) -> None:
        """Links are their connections' to close."""

    async def lost(self, handle: SandboxHandle, error: Exception) -> SandboxError:
        if self._faults:
            return wire.nonsense(handle, self._faults[0])
        try:
            await self._server.look(handle.sandbox_id)
        except SandboxGone as gone:
            return gone
        except SandboxError as fault:
            return LinkCut(f"the link to sandbox {handle.sandbox_id} was cut: {fault}", reached=True)
        return LinkCut(
            f"the link to sandbox {handle.sandbox_id} on {handle.node} was cut ({type(error).__name__})", reached=True
        )


class PatientCalls(wire.SandboxCalls):
    """Calls that outlast their links, and a server that is away for `AWAY_S`."""

    async def call(self, header: dict[str, Any], payload: bytes = b"", *, timeout_s: float) -> wire.WireAnswer:
        repeatable = "act" in header or header["op"] in REPEATABLE
        begun = False

        async def once() -> wire.WireAnswer:
            return await super(PatientCalls, self).call(header, payload, timeout_s=timeout_s)

        def again(cut: LinkCut) -> bool:
            nonlocal begun
            begun = begun or not cut.unsent
            return repeatable or cut.unsent

        try:
            return await patiently(once, AWAY_S, again, most_s=AWAY_S + timeout_s)
        except asyncio.CancelledError:
            if begun and "act" in header and not self.detached:  # between two links, too
                await self._stop(header)
            raise


class RemoteSandbox(SocketSandbox):
    """`Sandbox` over a server's links."""

    def __init__(
        self, handle: SandboxHandle, server: RemoteServer, line: wire.SandboxCalls | None = None, name: str = ""
    ) -> None:
        super().__init__(handle, line or PatientCalls(handle, RemoteDial(server)), name)
        self._server = server

    def named(self, call: str) -> "RemoteSandbox":
        named = RemoteSandbox(self._handle, self._server, self._line, call)
        named._fence = self._fence
        return named

    async def upload(self, source: Path, path: str, *, mode: int | None = None) -> None:
        marks = self._marks("upload")
        await patiently(
            lambda: transfer.upload(self._handle, source, path, mode=mode, marks=marks, dial=self._line.dial),
            AWAY_S,
            most_s=TRANSFER_S,
        )

    async def download(self, path: str, target: Path) -> None:
        marks = self._marks("download")
        await patiently(
            lambda: transfer.download(self._handle, path, target, marks=marks, dial=self._line.dial),
            AWAY_S,
            most_s=TRANSFER_S,
        )

    async def close(self) -> None:
        """Destroys it; where the server is away, its time to live does."""
        self._line.close()
        await destroy(self._server, self._handle.sandbox_id)


async def destroy(server: RemoteServer, name: str) -> None:
    """Destroys a sandbox by its name, now or, where the server is away, when nobody has asked for it for long."""
    try:
        await patiently(lambda: server.delete(name), CLOSE_S)
    except SandboxError as error:
        log.warning(
            "sandbox %s is not destroyed now, but after at most %.0f s without a heartbeat: %s", name, TTL_S, error
        )
