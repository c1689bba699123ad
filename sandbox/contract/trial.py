"""A trial of one server: what its checks share."""

import os
import secrets
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from sandbox.errors import SandboxError
from sandbox.lifetime.owner import Owner, OwnerKind
from sandbox.protocol import SandboxSpec
from sandbox.remote.access import ServerAccess
from sandbox.remote.box import RemoteSandbox
from sandbox.remote.http import RemoteServer, ServerAnswer
from sandbox.remote.messages import NewSandbox, RemoteState
from sandbox.remote.provider import RemoteProvider

SHORT_S: Final = 2.0  # a time to live


class ContractBroken(Exception):
    """An answer is not the one that the protocol asks for."""


def expect(condition: bool, got: object) -> None:
    if not condition:
        raise ContractBroken(f"got {got!r}"[:500])


class ContractTrial:
    """A server and a service of the trial's own. `aclose` destroys what is left."""

    def __init__(self, access: ServerAccess) -> None:
        self.access = access
        self.provider = RemoteProvider("contract", access)
        self.server = self.provider.server
        self.service = f"contract-{secrets.token_hex(4)}"
        self._named: list[str] = []

    async def box(self, **about: Any) -> RemoteSandbox:
        owner = Owner(OwnerKind.JOB, self.service, f"{secrets.token_hex(4)} token run")
        made = await self.provider.create(SandboxSpec(owner=owner.text, **about))
        self._named.append(made.handle.sandbox_id)
        return made

    def name(self) -> str:
        self._named.append(secrets.token_hex(8))
        return self._named[-1]

    def wanted(self, **other: object) -> NewSandbox:
        return msgspec.structs.replace(NewSandbox(service=self.service, owner="o", ttl_s=60), **other)

    async def put(self, name: str, wanted: NewSandbox | bytes) -> ServerAnswer:
        body = wanted if isinstance(wanted, bytes) else msgspec.json.encode(wanted)
        return await self.server.exchange("PUT", f"/sandboxes/{name}", body)

    async def look(self, name: str) -> ServerAnswer:
        return await self.server.exchange("GET", f"/sandboxes/{name}")

    async def left_s(self, name: str) -> float:
        answer = await self.look(name)
        expect(answer.status == 200, answer)
        return msgspec.json.decode(answer.body, type=RemoteState).expires_s

    @asynccontextmanager
    async def stranger(self) -> AsyncIterator[RemoteServer]:
        """A client with a token that no server knows."""
        with tempfile.TemporaryDirectory(prefix="sandbox-contract-") as directory:
            file = Path(directory, "token")
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT, 0o600)
            os.write(descriptor, secrets.token_hex(16).encode())
            os.close(descriptor)
            server = RemoteServer(msgspec.structs.replace(self.access, token_file=file))
            try:
                yield server
            finally:
                await server.aclose()

    async def aclose(self) -> list[str]:
        """Destroys what it made; the reasons why something could not be."""
        problems = []
        for name in self._named:
            try:
                await self.server.delete(name)
            except SandboxError as error:
                problems.append(str(error))
        await self.provider.aclose()
        return problems
