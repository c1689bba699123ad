"""The host's side of the sandbox socket.

A client keeps one connection between its calls, and opens more for calls at the same time. Any process of the node can
call, and cancelling a call (which closes its connection) stops what it started.
"""

import asyncio
import contextlib
import socket
import struct
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import msgspec

from sandbox.errors import CannotRestore, SandboxBusy, SandboxError, SandboxGone, SandboxOverrun, SandboxTaken
from sandbox.host import process
from sandbox.lifetime import cgroup, label
from sandbox.lifetime.link import Link
from sandbox.protocol import SandboxHandle

LENGTHS = struct.Struct("!II")
STOP_S = 2.0  # for telling the server so
GRACE_S = 20.0  # beyond a command's own time: stopping it takes the server up to two seconds
HEADER_LIMIT = 8 << 20  # what is larger was not written by our server
PAYLOAD_LIMIT = 256 << 20
TOLD = frozenset({"bash", "ipython", "run"})  # whose output ends with what became of limits
OVERRUN = b"\n[over the memory limit: the kernel killed the process that had most]\n"


class WireAnswer(NamedTuple):
    """A header with a binary payload."""

    header: dict[str, Any]
    payload: bytes


class Dial(Protocol):
    """A way to the socket of a sandbox's server."""

    async def connect(self, handle: SandboxHandle) -> socket.socket:
        """A stream to the server, which does not block. Raises `ConnectionError` or `FileNotFoundError` where no server
        listens, and the `SandboxError` that the way itself has met.
        """
        ...

    def heard(self, handle: SandboxHandle) -> bool:
        """The server has answered just now. True if the kernel has ended processes for the sandbox's limit of memory
        since it answered before.
        """
        ...

    async def lost(self, handle: SandboxHandle, error: Exception) -> SandboxError:
        """The error of a stream that was not made, or has ended too early."""
        ...

    def close(self) -> None:
        """Frees what it keeps open between calls. It can be used again."""
        ...


class UnixDial:
    """The way to one sandbox of this node: the socket in its directory.

    Where the kernel has ended processes of it for its own limit of memory since it was last heard of, it was that.
    """

    def __init__(self) -> None:
        self._overruns: cgroup.Overruns | None = None
        self._before = 0  # until it was last heard of
        self._told = 0

    async def connect(self, handle: SandboxHandle) -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        try:
            made.setblocking(False)
            with label.socket_address(Path(handle.directory)) as address:
                await asyncio.get_running_loop().sock_connect(made, address)
            if self._overruns is None:
                self._told = self._counted(handle)  # those before are told already, or another client's
        except BaseException:
            made.close()
            raise
        return made

    def heard(self, handle: SandboxHandle) -> bool:
        self._before = self._counted(handle)
        told, self._told = self._told, self._before
        return self._before > told

    async def lost(self, handle: SandboxHandle, error: Exception) -> SandboxError:
        return _gone(handle, error, overrun=self._counted(handle) > self._before)

    def close(self) -> None:
        self._overruns = None

    def _counted(self, handle: SandboxHandle) -> int:
        if self._overruns is None:
            made = label.read(Path(handle.directory))
            self._overruns = cgroup.Overruns(made.cgroups if made is not None else ())
        return self._overruns.count()


class WireConnection:
    """Requests one after the other with their answers, and raw bytes before or behind these.

    Used as a context, it raises `SandboxGone` when the sandbox is dead or dies meanwhile. It is closed at the end, and
    with it what the last request has started, unless `keep` was set.
    """

    def __init__(self, handle: SandboxHandle, dial: Dial | None = None) -> None:
        self._handle = handle
        self._dial = dial or UnixDial()
        self._link: Link | None = None
        self.keep = False

    async def __aenter__(self) -> Self:
        self.keep = False
        if self._link is not None and self._link.ended:  # while it was idle
            self.close()
        if self._link is None:
            try:
                self._link = Link(await self._dial.connect(self._handle))
            except (ConnectionError, FileNotFoundError) as error:
                raise await self._dial.lost(self._handle, error) from error
        return self

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None or not self.keep:
            self.close()
        if isinstance(error, EOFError | ConnectionError):
            raise await self._dial.lost(self._handle, error) from error

    def close(self) -> None:
        """Idempotent."""
        if self._link is not None:
            self._link.close()
            self._link = None

    async def request(self, header: dict[str, Any], payload: bytes = b"") -> None:
        head = msgspec.json.encode(header)
        await self.send(LENGTHS.pack(len(head), len(payload)) + head + payload)

    async def send(self, data: bytes) -> bool:
        """False when the server has closed its end; what it answered before that is still to be read."""
        assert self._link is not None
        try:
            await self._link.send(data)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    async def answer(self) -> WireAnswer:
        """Raises `EOFError` when the server closes first."""
        data = await self._received(LENGTHS.size)
        head_size, payload_size = LENGTHS.unpack_from(data)
        if head_size > HEADER_LIMIT or payload_size > PAYLOAD_LIMIT:
            raise nonsense(self._handle, f"{head_size} + {payload_size} bytes")
        body = LENGTHS.size + head_size
        end = body + payload_size
        await self._received(end)
        try:
            header = msgspec.json.decode(data[LENGTHS.size : body], type=dict[str, Any])
        except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
            raise nonsense(self._handle, str(error)) from error
        answer = WireAnswer(header, bytes(data[body:end]))
        del data[:end]
        return answer

    async def receive_into(self, buffer: memoryview) -> int:
        """The next bytes behind an answer, at least one. Raises `EOFError`."""
        data = await self._received(1)
        count = min(len(data), len(buffer))
        buffer[:count] = data[:count]
        del data[:count]
        return count

    async def _received(self, size: int) -> bytearray:
        """The bytes that have come and were not taken, at least `size` of them."""
        assert self._link is not None
        while len(self._link.data) < size:
            await self._link.more()
        return self._link.data


class SandboxCalls:
    """One client's calls of one sandbox. Dropping it frees everything."""

    def __init__(self, handle: SandboxHandle, dial: Dial | None = None) -> None:
        self._handle = handle
        self.dial = dial or UnixDial()
        self._idle: WireConnection | None = None
        self.detached = False  # a cancelled call lets its act run on
        self._overrun = False  # and no answer has said so

    async def call(self, header: dict[str, Any], payload: bytes = b"", *, timeout_s: float) -> WireAnswer:
        """Sends a request and waits for its answer.

        Raises `SandboxGone` when the sandbox is dead or dies meanwhile, `SandboxError` when it does not answer in
        `timeout_s` plus a grace, and the `OSError` that a file operation met inside.
        """
        connection, self._idle = self._idle or WireConnection(self._handle, self.dial), None
        sent = False
        try:
            async with asyncio.timeout(timeout_s + GRACE_S), connection:
                sent = "act" in header
                await connection.request(header, payload)
                answer = await connection.answer()
                self._overrun = self.dial.heard(self._handle) or self._overrun
                if self._overrun and header["op"] in TOLD:
                    self._overrun = False
                    answer = answer._replace(payload=answer.payload + OVERRUN)
                connection.keep = not answer.header.pop("last", False)
        except (TimeoutError, asyncio.CancelledError) as error:
            if sent and not self.detached:
                await self._stop(header)
            if isinstance(error, TimeoutError):
                raise unanswered(self._handle, header["op"], timeout_s + GRACE_S) from None
            raise
        self._keep(connection)
        return checked(self._handle, answer)

    async def _stop(self, header: dict[str, Any]) -> None:
        """Ends a named act, which the end of its connection does not."""
        stop = {"op": "stop", "act": header["act"], "fence": header.get("fence", "")}
        with contextlib.suppress(SandboxError, OSError):
            await call(self._handle, stop, timeout_s=STOP_S - GRACE_S, dial=self.dial)

    def _keep(self, connection: WireConnection) -> None:
        if self._idle is None:
            self._idle = connection
        else:
            connection.close()

    def close(self) -> None:
        """Idempotent; the next call opens a connection again."""
        if self._idle is not None:
            self._idle.close()
        self.dial.close()

    def __del__(self) -> None:
        self.close()


async def call(
    handle: SandboxHandle, header: dict[str, Any], *, timeout_s: float, dial: Dial | None = None
) -> WireAnswer:
    """A single call, as `SandboxCalls.call`."""
    line = SandboxCalls(handle, dial)
    try:
        return await line.call(header, timeout_s=timeout_s)
    finally:
        line.close()


def unanswered(handle: SandboxHandle, operation: str, waited_s: float) -> SandboxError:
    return SandboxError(
        f"sandbox {handle.sandbox_id} on {handle.node} did not answer {operation!r} within {waited_s:.0f} s; destroy it"
    )


def nonsense(handle: SandboxHandle, said: str) -> SandboxError:
    """Bytes that our server does not write: something inside has taken its place, or its pipes."""
    return SandboxError(f"sandbox {handle.sandbox_id} on {handle.node} gave an answer that is none ({said[:200]})")


def _gone(handle: SandboxHandle, error: Exception, *, overrun: bool) -> SandboxGone:
    if overrun:
        return SandboxOverrun(
            f"sandbox {handle.sandbox_id} on {handle.node} is gone: what ran inside took all the memory that its "
            "control group has, and the kernel ended its server too; make a new one, with more memory for what needs it"
        )
    if process.is_alive(handle.pid, handle.pid_started):
        why = f"its server does not answer ({type(error).__name__}) though process {handle.pid} lives"
    else:
        why = f"process {handle.pid} is dead"
    return SandboxGone(f"sandbox {handle.sandbox_id} on {handle.node} is gone: {why}; make a new one")


def checked(handle: SandboxHandle, answer: WireAnswer) -> WireAnswer:
    """The answer, if it is one. Raises `SandboxError`, and the `OSError` that a file operation met inside."""
    header = answer.header
    if "taken" in header:
        raise SandboxTaken(f"another attempt of its job has sandbox {handle.sandbox_id}; this one is to stop")
    if "busy" in header:
        raise SandboxBusy(
            f"sandbox {handle.sandbox_id} is not at rest: {str(header['busy'])[:200]}; wait until it ends"
        )
    if "unrestorable" in header:
        why = str(header["unrestorable"])[:2000]
        raise CannotRestore(f"sandbox {handle.sandbox_id} cannot be restored: {why}; destroy it and begin without")
    if "fault" in header:
        raise SandboxError(f"the server of sandbox {handle.sandbox_id} failed: {str(header['fault'])[:2000]}")
    if "errno" in header:
        number, message, path = (header.get(name) for name in ("errno", "message", "path"))
        if not isinstance(number, int) or abs(number) >= 1 << 31:
            raise nonsense(handle, f"errno {number!r}"[:200])
        raise OSError(number, str(message), str(path))
    return answer
