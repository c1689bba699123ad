"""A scripted sandbox, for tests of code that uses sandboxes."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from sandbox.errors import CannotRestore, SandboxError, SandboxGone, SandboxTaken
from sandbox.protocol import (
    CellResult,
    EditorCommand,
    EditorResult,
    Fenced,
    ProcessResult,
    SandboxHandle,
    SandboxSpec,
    Saved,
    ShellResult,
)


class FakeCall(NamedTuple):
    """A call of a sandbox: the method, its main argument, the rest."""

    method: str  # bash, ipython, edit or run
    argument: Any
    options: dict[str, Any]


Script = Sequence[Any] | Callable[[FakeCall], Any]


class FakeProvider:
    """`SandboxProvider` whose sandboxes answer from `script`: results in order, or a function of the call.

    A result is what the method returns, or an exception that it raises; a string stands for a successful result with
    this output. Files are kept in memory, and are all that a checkpoint has. `calls`, `specs` and
    `alive` tell a test what happened.
    """

    kind = "fake"

    def __init__(self, script: Script = (), *, node: str = "node") -> None:
        self.node = node
        self.calls: list[FakeCall] = []
        self.specs: list[SandboxSpec] = []
        self.alive: dict[str, FakeSandbox] = {}
        self._results = iter(()) if callable(script) else iter(script)
        self._answer = script if callable(script) else self._next

    def _next(self, call: FakeCall) -> Any:
        try:
            return next(self._results)
        except StopIteration:
            raise AssertionError(f"the script has no result left for {call}") from None

    def play(self, call: FakeCall) -> Any:
        """The script's next result for this call."""
        self.calls.append(call)
        result = self._answer(call)
        if isinstance(result, BaseException):
            raise result
        return result

    async def create(self, spec: SandboxSpec) -> "FakeSandbox":
        self.specs.append(spec)
        handle = SandboxHandle(
            kind=self.kind, node=self.node, sandbox_id=f"fake-{len(self.specs)}",
            directory=f"/nowhere/fake-{len(self.specs)}", pid=len(self.specs), pid_started="0",
        )  # fmt: skip
        sandbox = FakeSandbox(self, handle)
        self.alive[handle.sandbox_id] = sandbox
        return sandbox

    async def attach(self, handle: SandboxHandle) -> "FakeSandbox":
        if handle.sandbox_id not in self.alive:
            raise SandboxGone(f"sandbox {handle.sandbox_id} is gone; make a new one")
        return self.alive[handle.sandbox_id]

    async def destroy(self, handle: SandboxHandle) -> None:
        self.alive.pop(handle.sandbox_id, None)

    async def aclose(self) -> None:
        pass


class FakeSandbox:
    """`Sandbox` that plays its provider's script."""

    def __init__(self, provider: FakeProvider, handle: SandboxHandle) -> None:
        self._provider = provider
        self._handle = handle
        self.files: dict[str, bytes] = {}
        self.interrupts = 0
        self.fences: list[tuple[int, str]] = []
        self.turn = -1  # the highest that has named a call
        self.lost: tuple[str, ...] = ()  # what its checkpoints are to say
        self._marked: dict[str, bytes] | None = None
        self._digest = ""
        self._spoilt = False

    @property
    def handle(self) -> SandboxHandle:
        return self._handle

    async def fence(self, attempt: int, token: str) -> Fenced:
        if self.fences and attempt <= self.fences[-1][0] and (attempt, token) != self.fences[-1]:
            raise SandboxTaken(f"another attempt of its job has sandbox {self._handle.sandbox_id}; this one is to stop")
        self.fences.append((attempt, token))
        return Fenced(boot="fake", turn=self.turn, begun=())

    def named(self, call: str) -> "FakeSandbox":
        self.turn = max(self.turn, int(call.partition(".")[0]))
        return self

    def detach(self) -> None:
        pass

    def _play(self, method: str, argument: Any, **options: Any) -> Any:
        self._require_alive()
        return self._provider.play(FakeCall(method, argument, options))

    async def bash(self, command: str, *, timeout_s: float = 30.0, is_input: bool = False) -> ShellResult:
        result = self._play("bash", command, timeout_s=timeout_s, is_input=is_input)
        return _typed(ShellResult(output=result, exit_code=0) if isinstance(result, str) else result, ShellResult)

    async def ipython(self, code: str, *, timeout_s: float = 30.0) -> CellResult:
        result = self._play("ipython", code, timeout_s=timeout_s)
        return _typed(CellResult(output=result, ok=True) if isinstance(result, str) else result, CellResult)

    async def edit(self, command: EditorCommand) -> EditorResult:
        result = self._play("edit", command)
        return _typed(EditorResult(output=result, ok=True) if isinstance(result, str) else result, EditorResult)

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
        options = {"stdin": stdin, "timeout_s": timeout_s, "cwd": cwd, "output_bytes": output_bytes, "alone": alone}
        result = self._play("run", list(argv), **options)
        plain = isinstance(result, str)
        return _typed(
            ProcessResult(exit_code=0, stdout=result.encode(), stderr=b"") if plain else result, ProcessResult
        )

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:  # noqa: ARG002
        self.files[path] = data

    async def read_file(self, path: str, *, limit_bytes: int = 16 << 20) -> bytes:
        if path not in self.files:
            raise FileNotFoundError(2, "No such file or directory", path)
        if len(self.files[path]) > limit_bytes:
            raise OSError(27, f"the file is larger than {limit_bytes} bytes", path)
        return self.files[path]

    async def upload(self, source: Path, path: str, *, mode: int | None = None) -> None:  # noqa: ARG002
        self.files[path] = source.read_bytes()  # noqa: ASYNC240 - a test's own small file

    async def download(self, path: str, target: Path) -> None:
        if path not in self.files:
            raise FileNotFoundError(2, "No such file or directory", path)
        target.write_bytes(self.files[path])  # noqa: ASYNC240

    async def mark(self) -> Sequence[str]:
        self._require_alive()
        self._marked, self._digest = dict(self.files), ""
        return ()

    async def save(self, *, max_bytes: int = 64 << 20, known: str | None = None) -> Saved:
        self._require_alive()
        if self._marked is None:
            return Saved(data=None, digest="", files=0, content_bytes=0, lost=("all of it: it was not marked",))
        changed = {path: data for path, data in self.files.items() if self._marked.get(path) != data}
        gone = sorted(set(self._marked) - set(self.files))
        size = sum(map(len, changed.values()))
        if size > max_bytes:
            lost = (*self.lost, f"what has changed: it is more than {max_bytes} bytes")
            return Saved(data=None, digest="", files=0, content_bytes=0, lost=lost, too_large=True)
        data = msgspec.msgpack.encode((sorted(changed.items()), gone))
        digest = hashlib.blake2b(data, digest_size=20).hexdigest() if changed or gone else ""
        if digest == (self._digest if known is None else known):
            return Saved(data=None, digest=digest, files=0, content_bytes=0, lost=self.lost)
        self._digest = digest
        files = len(changed) + len(gone)
        return Saved(data=data, digest=digest, files=files, content_bytes=size, lost=self.lost)

    async def restore(self, data: bytes) -> None:
        self._require_alive()
        try:
            changed, gone = msgspec.msgpack.decode(data, type=tuple[list[tuple[str, bytes]], list[str]])
        except msgspec.MsgspecError as error:
            self._spoilt = True
            raise CannotRestore(f"sandbox {self._handle.sandbox_id} cannot be restored: {error}") from error
        if self._marked != self.files:
            self._spoilt = True
            raise CannotRestore(f"sandbox {self._handle.sandbox_id} cannot be restored: it was not marked, or was used")
        self.files = {path: held for path, held in {**self.files, **dict(changed)}.items() if path not in gone}
        self._digest = hashlib.blake2b(data, digest_size=20).hexdigest()

    def _require_alive(self) -> None:
        if self._handle.sandbox_id not in self._provider.alive:
            raise SandboxGone(f"sandbox {self._handle.sandbox_id} is gone; make a new one")
        if self._spoilt:
            raise SandboxError(f"sandbox {self._handle.sandbox_id} could not be restored, so it is of no use")

    async def interrupt(self) -> None:
        self.interrupts += 1

    async def close(self) -> None:
        await self._provider.destroy(self._handle)


T = TypeVar("T")


def _typed(result: Any, expected: type[T]) -> T:
    if not isinstance(result, expected):
        raise TypeError(f"the script gives {result!r} where a {expected.__name__} is asked for")
    return result
