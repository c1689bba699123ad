"""The sandboxes of a server by their names, as their labels on disk say; what this process knows of them is a copy.

So a server that is killed and started again has the same sandboxes. One without heartbeat and link for its time to live
is destroyed, and so are those whose making was cut short.
"""

import asyncio
import contextlib
import hashlib
import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Final, NamedTuple

import msgspec

from sandbox.errors import SandboxError
from sandbox.host.process import is_alive
from sandbox.lifetime import label
from sandbox.lifetime.sweep import sweep
from sandbox.protocol import SandboxHandle, SandboxProvider, SandboxSpec
from sandbox.remote.messages import NewSandbox, RemoteState

PREFIX: Final = "remote "
LOOK_S: Final = 1.0
log = logging.getLogger(__name__)


class ServedKey(NamedTuple):
    """Its tenant and its name. Two services may give one name."""

    tenant: str
    name: str


class ServedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The owner in a sandbox's label, behind `PREFIX`."""

    tenant: str
    name: str
    service: str
    owner: str
    wanted: str  # a digest of what was asked for
    ttl_s: float
    ready: bool = False

    @property
    def key(self) -> ServedKey:
        return ServedKey(self.tenant, self.name)

    @property
    def text(self) -> str:
        return PREFIX + msgspec.json.encode(self).decode()


class Placed(NamedTuple):
    """A sandbox that is ready."""

    record: ServedRecord
    handle: SandboxHandle


class NoRoom(Exception):
    """The server holds as many sandboxes as it may."""


class OtherSandbox(Exception):
    """The name is taken by one that was asked for in other words."""


class ServedSandboxes:
    """`open` first, then `run` in a task."""

    def __init__(self, provider: SandboxProvider, state_dir: Path, most: int) -> None:
        self._provider = provider
        self._state_dir = state_dir
        self._most = most
        self._placed: dict[ServedKey, Placed] = {}
        self._making: dict[ServedKey, tuple[str, asyncio.Task[Placed]]] = {}
        self._ends_s: dict[ServedKey, float] = {}
        self._links: Counter[ServedKey] = Counter()  # open ones

    async def open(self) -> None:
        """Takes over what an earlier server has left, and destroys what that had not finished."""
        kept: set[str] = set()
        for directory, made in await asyncio.to_thread(label.labelled, self._state_dir):
            record = record_in(made.owner)
            if record is not None and record.ready and made.alive and made.node == self._provider.node:
                kept.add(made.owner)
                self._placed[record.key] = Placed(record, label.handle_of(directory, made))
                self.wanted(record.key)
        await sweep(
            self._state_dir, kept.__contains__, node=self._provider.node, ours=lambda owner: owner.startswith(PREFIX)
        )

    async def run(self) -> None:
        """Destroys what nobody has wanted for its time to live, and what is left of those that have ended. Never
        returns.
        """
        while True:
            began = monotonic()
            await asyncio.sleep(LOOK_S)
            self.forgive(monotonic() - began - LOOK_S)
            await asyncio.gather(*map(self._end, [key for key in self._placed if self._is_over(key)]))

    def forgive(self, stalled_s: float) -> None:
        """Gives back the time in which this process was stopped: it could take no heartbeat then."""
        if stalled_s > LOOK_S:
            self._ends_s = {key: end + stalled_s for key, end in self._ends_s.items()}

    def _is_over(self, key: ServedKey) -> bool:
        if key in self._making:  # in the place of one that has ended
            return False
        return self.find(key) is None or (self._ends_s[key] < monotonic() and not self._links[key])

    async def _end(self, key: ServedKey) -> None:
        if self.find(key) is not None:
            log.warning("sandbox %s of %s had no heartbeat for its time to live", key.name, key.tenant)
        try:
            await self.remove(key)
        except Exception as error:  # whatever it is, the others must still end
            log.warning("sandbox %s of %s is not destroyed, it is tried again: %s", key.name, key.tenant, error)

    @contextlib.contextmanager
    def linked(self, key: ServedKey) -> Iterator[None]:
        """A link to it is open: it does not end for want of heartbeats."""
        self._links[key] += 1
        try:
            yield
        finally:
            self._links[key] -= 1
            if not self._links[key]:
                del self._links[key]
            self.wanted(key)

    async def create(self, key: ServedKey, wanted: NewSandbox) -> tuple[Placed, bool]:
        """The sandbox of this name, and whether it is new. Who asks while it is made waits for the same one.

        Raises `NoRoom`, `OtherSandbox`, `SandboxError`.
        """
        digest = hashlib.blake2b(msgspec.json.encode(wanted, order="deterministic"), digest_size=16).hexdigest()
        found = self.find(key)
        if found is not None:
            if found.record.wanted != digest:
                raise OtherSandbox
            return found, False
        new = key not in self._making
        if new:
            if len(self._placed) + len(self._making) >= self._most:
                raise NoRoom
            self._making[key] = digest, asyncio.create_task(self._make(key, wanted, digest), name=f"make {key.name}")
        asked, making = self._making[key]
        if asked != digest:
            raise OtherSandbox
        await asyncio.wait({making})
        if making.cancelled():
            raise SandboxError(f"sandbox {key.name} was deleted while it was made")
        return making.result(), new

    async def _make(self, key: ServedKey, wanted: NewSandbox, digest: str) -> Placed:
        record = ServedRecord(
            tenant=key.tenant, name=key.name, service=wanted.service, owner=wanted.owner, wanted=digest,
            ttl_s=wanted.ttl_s,
        )  # fmt: skip
        spec = SandboxSpec(
            owner=record.text, image=wanted.image, environment=wanted.environment, limits=wanted.limits,
            writable=wanted.writable, empty=wanted.empty,
        )  # fmt: skip
        try:
            await self._remove_placed(key)  # one of this name that has ended by itself
            box = await self._provider.create(spec)
            record, handle = msgspec.structs.replace(record, ready=True), box.handle
            try:
                there = label.relabel(Path(handle.directory), handle.sandbox_id, record.text)
            except OSError:
                await asyncio.shield(box.close())
                raise
            if not there:
                await asyncio.shield(box.close())
                raise SandboxError(f"sandbox {key.name} has ended while it was made")
            placed = self._placed[key] = Placed(record, handle)
            self._ends_s[key] = monotonic() + record.ttl_s
            return placed
        finally:
            self._making.pop(key, None)

    def find(self, key: ServedKey) -> Placed | None:
        """None where it is not there, is not ready, or has ended by itself."""
        placed = self._placed.get(key)
        return placed if placed is not None and is_alive(placed.handle.pid, placed.handle.pid_started) else None

    def wanted(self, key: ServedKey) -> bool:
        """Begins its time to live again. False: it is not there."""
        placed = self.find(key)
        if placed is not None:
            self._ends_s[key] = monotonic() + placed.record.ttl_s
        return placed is not None

    def listed(self, tenant: str, service: str) -> list[RemoteState]:
        """By name."""
        found = [
            key for key, placed in self._placed.items() if key.tenant == tenant and placed.record.service == service
        ]
        return [self.state(key) for key in sorted(found) if self.find(key) is not None]

    def state(self, key: ServedKey) -> RemoteState:
        record = self._placed[key].record
        left = max(0.0, self._ends_s[key] - monotonic())
        return RemoteState(name=key.name, service=record.service, owner=record.owner, expires_s=left)

    async def remove(self, key: ServedKey) -> None:
        """Destroys it, or what is being made of it. Idempotent."""
        if key in self._making:
            _, making = self._making[key]
            making.cancel()
            await asyncio.wait({making})
            if key in self._making and self._making[key][1] is making:  # cancelled before it had begun
                del self._making[key]
        await self._remove_placed(key)

    async def _remove_placed(self, key: ServedKey) -> None:
        placed = self._placed.get(key)
        if placed is not None:
            await self._provider.destroy(placed.handle)
            if self._placed.get(key) is placed:  # and no new one of this name
                self._placed.pop(key)
                self._ends_s.pop(key, None)

    async def aclose(self) -> None:
        """Ends what is being made; the sandboxes live on."""
        for _, making in list(self._making.values()):
            making.cancel()
            with contextlib.suppress(asyncio.CancelledError, SandboxError, OSError):
                await making


def record_in(owner: str) -> ServedRecord | None:
    """None for a sandbox that no server has made."""
    if not owner.startswith(PREFIX):
        return None
    try:
        return msgspec.json.decode(owner.removeprefix(PREFIX), type=ServedRecord)
    except msgspec.MsgspecError:
        return None
