"""A living sandbox of any real kind, reached through its socket."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from sandbox.errors import SandboxGone
from sandbox.host.process import is_alive
from sandbox.lifetime import destroy, transfer, wire
from sandbox.protocol import (
    CellResult,
    EditorCommand,
    EditorResult,
    Fenced,
    ProcessResult,
    SandboxHandle,
    SandboxLimits,
    Saved,
    ShellResult,
)
from sandbox.server.acts import ACTS

_T = TypeVar("_T", bound=msgspec.Struct)
OWN_WORK_S = 60.0  # for what the server does itself: files, edits
SAVE_S = 300.0
NOTHING = {"data": None, "digest": "", "files": 0, "content_bytes": 0}


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that the execution server is told once, before anything else."""

    cwd: str
    env: dict[str, str]
    limits: dict[str, int]
    output_bytes: int
    scratch: Sequence[str] = ()  # writable places inside whose file systems are this sandbox's alone
    counted: Sequence[str] = ()  # those that share one with others: their files are counted one by one
    places: Sequence[str] = ()  # all writable places, for checkpoints; none: it has no checkpoints
    python_dir: str | None = None  # as seen inside
    interpreter: str | None = None  # None: the system's
    own_network: bool = False  # whose sockets are all its own


def held_limits(limits: SandboxLimits) -> dict[str, int]:
    """The limits that the server turns into resource limits."""
    values: dict[str, int] = msgspec.to_builtins(limits)
    del values["output_bytes"]
    return values


class SocketSandbox:
    """`Sandbox` over the socket in the sandbox's directory. Dropping it frees all that it keeps open."""

    def __init__(self, handle: SandboxHandle, line: wire.SandboxCalls | None = None, name: str = "") -> None:
        self._handle = handle
        self._line = line or wire.SandboxCalls(handle)
        self._fence = ""
        self._name = name
        self._acts = 0  # that were named

    @property
    def handle(self) -> SandboxHandle:
        return self._handle

    async def configure(self, settings: Settings) -> str:
        """Once, by the maker. What a child of the server reads of itself in /proc: its file `status`."""
        return str((await self._call({"op": "configure", **msgspec.to_builtins(settings)})).header.get("child_status"))

    async def ping(self) -> None:
        await self._call({"op": "ping"})

    async def fence(self, attempt: int, token: str) -> Fenced:
        fence = f"{attempt} {token}"
        request = {"op": "fence", "attempt": attempt, "fence": fence}
        fenced = self._read(Fenced, (await self._call(request)).header)
        self._fence = fence
        return fenced

    def named(self, call: str) -> "SocketSandbox":
        named = SocketSandbox(self._handle, self._line, call)
        named._fence = self._fence
        return named

    def detach(self) -> None:
        self._line.detached = True

    async def bash(self, command: str, *, timeout_s: float = 30.0, is_input: bool = False) -> ShellResult:
        request = {"op": "bash", "timeout_s": timeout_s, "is_input": is_input}
        header, payload = await self._call(request, command.encode("utf-8", "replace"), timeout_s=timeout_s)
        return self._read(ShellResult, header, output=payload.decode("utf-8", "replace"))

    async def ipython(self, code: str, *, timeout_s: float = 30.0) -> CellResult:
        request = {"op": "ipython", "timeout_s": timeout_s}
        header, payload = await self._call(request, code.encode("utf-8", "replace"), timeout_s=timeout_s)
        return self._read(CellResult, header, output=payload.decode("utf-8", "replace"))

    async def edit(self, command: EditorCommand) -> EditorResult:
        header, payload = await self._call({"op": "edit", **msgspec.to_builtins(command)})
        return self._read(EditorResult, header, output=payload.decode("utf-8", "replace"))

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 30.0,
        cwd: str | None = None,
        output_bytes: int | None = None,
        alone: bool = False,
    ) -> ProcessResult:
        request = {
            "op": "run", "argv": list(argv), "timeout_s": timeout_s, "cwd": cwd, "output_bytes": output_bytes,
            "alone": alone,
        }  # fmt: skip
        header, payload = await self._call(request, stdin, timeout_s=timeout_s)
        cut = header.pop("stdout_bytes", None)
        if not isinstance(cut, int):
            raise wire.nonsense(self._handle, "it does not say where the output ends")
        return self._read(ProcessResult, header, stdout=payload[:cut], stderr=payload[cut:])

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        await self._call({"op": "write_file", "path": path, "mode": mode}, data)

    async def read_file(self, path: str, *, limit_bytes: int = 16 << 20) -> bytes:
        return (await self._call({"op": "read_file", "path": path, "limit_bytes": limit_bytes})).payload

    async def upload(self, source: Path, path: str, *, mode: int | None = None) -> None:
        await transfer.upload(self._handle, source, path, mode=mode, marks=self._marks("upload"), dial=self._line.dial)

    async def download(self, path: str, target: Path) -> None:
        await transfer.download(self._handle, path, target, marks=self._marks("download"), dial=self._line.dial)

    async def mark(self) -> Sequence[str]:
        header = (await self._call({"op": "mark"})).header
        return self._read(Saved, {**NOTHING, **header}).lost

    async def save(self, *, max_bytes: int = 64 << 20, known: str | None = None) -> Saved:
        request = {"op": "save", "max_bytes": max_bytes, "known": known}
        header, payload = await self._call(request, timeout_s=SAVE_S)
        return self._read(Saved, header, data=payload or None)

    async def restore(self, data: bytes) -> None:
        await self._call({"op": "restore"}, data, timeout_s=SAVE_S)

    async def places(self) -> Sequence[str]:
        """The directories that can be written to inside. None: it has no checkpoints, and cannot be copied."""
        places = (await self._call({"op": "ping"})).header.get("places", [])
        try:
            return msgspec.convert(places, list[str])
        except msgspec.ValidationError as error:
            raise wire.nonsense(self._handle, str(error)) from error

    async def restore_below(self, data: bytes, sealed_bytes: int) -> None:
        """The same for a sandbox whose places were covered by another one's layers, and an archive that lacks these."""
        request: dict[str, object] = {"op": "restore", "layered": True, "sealed": sealed_bytes}
        await self._call(request, data, timeout_s=SAVE_S)

    async def interrupt(self) -> None:
        await self._call({"op": "interrupt"})

    async def close(self) -> None:
        self._line.close()
        await destroy.destroy(self._handle)

    def _read(self, kind: type[_T], header: Mapping[str, object], **payload: object) -> _T:
        """A result of what was answered, which code inside may have written."""
        try:
            return msgspec.convert({**header, **payload}, kind)
        except msgspec.MsgspecError as error:
            raise wire.nonsense(self._handle, str(error)) from error

    async def _call(
        self, request: dict[str, object], payload: bytes = b"", *, timeout_s: float = OWN_WORK_S
    ) -> wire.WireAnswer:
        marked = {**request, **self._marks(request["op"])}
        return await self._line.call(marked, payload, timeout_s=timeout_s)

    def _marks(self, operation: object) -> dict[str, str]:
        """The asking attempt, and the name of the act, if it has one."""
        marks = {"fence": self._fence} if self._fence else {}
        if self._name and operation in ACTS:
            marks["act"] = f"{self._name}/{self._acts}"
            self._acts += 1
        return marks


def require(handle: SandboxHandle, *, kind: str, node: str) -> None:
    """Raises `SandboxGone` for a handle that belongs to another node, or to another kind of provider."""
    if (handle.kind, handle.node) != (kind, node):
        raise SandboxGone(
            f"sandbox {handle.sandbox_id} is of kind {handle.kind!r} on node {handle.node!r}; this is a provider of "
            f"kind {kind!r} on {node!r}"
        )


async def attach(handle: SandboxHandle, *, kind: str, node: str) -> SocketSandbox:
    """The living sandbox behind a handle. Raises `SandboxGone` when it is dead, or not of this kind and node."""
    require(handle, kind=kind, node=node)
    if not is_alive(handle.pid, handle.pid_started):
        raise SandboxGone(
            f"sandbox {handle.sandbox_id} on {node} is gone: process {handle.pid} is dead; make a new one"
        )
    sandbox = SocketSandbox(handle)
    await sandbox.ping()
    return sandbox
