"""The contract of every sandbox, whatever isolates it.

A sandbox is made by a `SandboxProvider`, lives on one node, and can be found again by its `SandboxHandle`: INIT makes
it, the handle travels with the job, RUN attaches to it. Closing is destruction; there is no reset.
Our own failures are raised as `SandboxError`; a failing command is a `ShellResult` with an exit code, never an
exception, so that neither is mistaken for the other.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec

REMOTE = "remote"  # the kind of sandboxes that belong to no node of the service: any of its workers can use them


class SandboxLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits for everything that runs in one sandbox. docs/howto/tools.md says which of these are soft."""

    memory_bytes: int = 2 << 30  # of all processes together, and of each one
    disk_bytes: int = 2 << 30  # of all writable places together, and of each one; of `writable`: what changes there
    processes: int = 256  # and threads
    file_bytes: int = 1 << 30  # of one file
    cpu_s: int = 3600  # of one process
    wall_s: int = 24 * 3600  # of the sandbox: then it ends, whoever has forgotten it
    open_files: int = 1024  # of one process
    output_bytes: int = 64 << 10  # of one command: head and tail are kept, what was dropped is said


Limits = SandboxLimits  # its name in 0.1.0; goes with the next release


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """A host file or directory that shows up inside, read-only unless said."""

    source: str
    target: str
    writable: bool = False


class SandboxSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox to make. `owner` labels everything the sandbox leaves on the host: a job and its token."""

    owner: str
    image: str | None = None  # None: the provider's base image
    mounts: Sequence[Mount] = ()
    environment: Mapping[str, str] = {}
    network: bool = False
    limits: SandboxLimits = SandboxLimits()
    writable: Sequence[str] = ()  # directories of the image that may be written to; the image stays as it is
    empty: Sequence[str] = ()  # directories in memory that begin empty, whatever the image has there
    door: bool = False  # a directory shared with the host, for the socket of a server there
    evaluates: bool = False  # it goes before those that do not where CPU time is short


class SandboxHandle(msgspec.Struct, frozen=True, kw_only=True):
    """Enough to find a living sandbox again from another process of the same node; of a remote one, of any node."""

    kind: str
    node: str  # of a remote one: its server's name
    sandbox_id: str
    directory: str  # the sandbox's private directory on the host, mode 0700; of a remote one, its address
    pid: int  # of a remote one: 0
    pid_started: str  # start time from /proc: a recycled pid is not the sandbox
    door: str = ""  # the host's side of the directory that it shares, if it asked for one


class ShellResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one bash command. `exit_code` is None while it still runs (it waits for input, or timed out alive)."""

    output: str
    exit_code: int | None
    timed_out: bool = False
    dropped_bytes: int = 0
    seconds: float = 0.0


class CellImage(msgspec.Struct, frozen=True, kw_only=True):
    """A picture that a cell showed, as a file inside the sandbox."""

    path: str
    mime: str
    size_bytes: int


class CellResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one IPython cell: its printed output, its value's repr or its traceback, in the order they came.

    Where a picture was shown, the output has a line with its type, size and path.
    """

    output: str
    ok: bool
    images: Sequence[CellImage] = ()
    timed_out: bool = False
    dropped_bytes: int = 0
    seconds: float = 0.0


class ProcessResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one program, run to its end outside the persistent shell."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    dropped_bytes: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0  # of the program and its children that it waited for; when it timed out, of all
    starved_seconds: float = 0.0  # when it timed out: how long a thread was ready and had no CPU


class EditorCommand(msgspec.Struct, frozen=True, kw_only=True):
    """One call of the `str_replace_editor` tool."""

    command: str  # view, create, str_replace, insert, undo_edit
    path: str
    file_text: str | None = None
    old_str: str | None = None
    new_str: str | None = None
    insert_line: int | None = None
    view_range: tuple[int, int] | None = None


class EditorResult(msgspec.Struct, frozen=True, kw_only=True):
    """The editor's answer; `ok` is false when the edit was refused, and `output` then says why."""

    output: str
    ok: bool


class Fenced(msgspec.Struct, frozen=True, kw_only=True):
    """The acts that a sandbox knows when an attempt takes it over."""

    boot: str  # of the server that knows them
    turn: int  # the highest of which an act was begun; -1: none
    begun: tuple[str, ...]  # the names of that turn's acts
    seconds: float = 0.0  # that these have run


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a sandbox, as far as it differs from its mark. docs/howto/sandboxes.md says what is in it."""

    data: bytes | None  # an archive that is enough by itself; None: that of the last time still holds, or there is none
    digest: str  # of the archive that holds; empty: nothing differs from the mark, or nothing is saved
    files: int  # that were changed, made or removed; 0 where `data` is None
    content_bytes: int  # of the archive, before compression
    lost: tuple[str, ...] = ()  # what cannot be restored, in words
    too_large: bool = False  # more than was asked for has changed; nothing is saved


@runtime_checkable
class Sandbox(Protocol):
    """A living sandbox. Every method raises `SandboxError` when the sandbox itself failed."""

    @property
    def handle(self) -> SandboxHandle: ...

    async def fence(self, attempt: int, token: str) -> Fenced:
        """Makes this attempt the only one that acts here: what one of a lower number, or another one of the same, asks
        from then on raises `SandboxTaken`. Raises that if there is a later one already.
        """
        ...

    def named(self, call: str) -> "Sandbox":
        """The same sandbox for one call of an agent, TURN.PLACE. What acts in it is numbered in its order and run once:
        asked for again, by another process too, it is waited for, and gives the same result. It does not end with who
        waits for it, but when that is cancelled. Results are kept until a later turn acts.
        """
        ...

    def detach(self) -> None:
        """From now on, cancelling a named call lets what it runs run on."""
        ...

    async def bash(self, command: str, *, timeout_s: float = 30.0, is_input: bool = False) -> ShellResult:
        """Runs a command in the persistent shell; cwd, environment and background jobs stay for the next one."""
        ...

    async def ipython(self, code: str, *, timeout_s: float = 30.0) -> CellResult:
        """Runs a cell in the persistent kernel."""
        ...

    async def edit(self, command: EditorCommand) -> EditorResult: ...

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
        """Runs one program to its end, outside the shell; returns when the process exits, without polling.

        `alone`: nothing else is to run meanwhile. Whatever the program started is then dead on return, also what has
        left its session, and `cpu_seconds` counts it.
        """
        ...

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Writes into the file that is there, or makes one. Paths lead where they lead a program inside."""
        ...

    async def read_file(self, path: str, *, limit_bytes: int = 16 << 20) -> bytes: ...

    async def upload(self, source: Path, path: str, *, mode: int | None = None) -> None:
        """Copies a host's file of any size in, with its permissions unless `mode` gives others.

        It appears whole or not at all, also when cancelled. Raises the `OSError` of either side.
        """
        ...

    async def download(self, path: str, target: Path) -> None:
        """Copies a file of any size out, in the same way; it comes without write permission for others."""
        ...

    async def mark(self) -> Sequence[str]:
        """Takes what the sandbox is now for its beginning: what is saved later is what differs from it.

        The answer says why nothing can be saved; it is empty where all is well. Raises `SandboxBusy` while something
        runs that is waited for, as `save` and `restore` do. All three are for trusted code between two turns, and never
        for a sandbox in which something is scored: an agent could have written the archive.
        """
        ...

    async def save(self, *, max_bytes: int = 64 << 20, known: str | None = None) -> Saved:
        """Files, shell and kernel, as they differ from the mark. `max_bytes`: of the archive, before compression;
        `known`: the digest of the one that the caller has, where that is not the last one.
        """
        ...

    async def restore(self, data: bytes) -> None:
        """Makes of a sandbox that was just marked what the saved one was. Raises `CannotRestore` when it does not
        become the same, and from then on whoever uses this sandbox gets a `SandboxError`.
        """
        ...

    async def interrupt(self) -> None:
        """Stops what runs now (shell command, cell or program); the sandbox stays usable."""
        ...

    async def close(self) -> None:
        """Destroys the sandbox: every process in it is dead and its directory is gone on return. Idempotent."""
        ...


class SandboxProvider(Protocol):
    """Makes sandboxes of one kind on this node."""

    @property
    def kind(self) -> str: ...

    @property
    def node(self) -> str: ...

    async def create(self, spec: SandboxSpec) -> Sandbox: ...

    async def attach(self, handle: SandboxHandle) -> Sandbox:
        """The living sandbox behind a handle. Raises `SandboxGone` when it is dead or on another node."""
        ...

    async def destroy(self, handle: SandboxHandle) -> None:
        """Destroys by handle, alive or half dead. Idempotent."""
        ...

    async def aclose(self) -> None:
        """Releases what the provider itself holds. Sandboxes handed out live on."""
        ...
