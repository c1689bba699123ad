"""Copies of living sandboxes, made in milliseconds: files by layers, and what is in processes by a small archive.

The source rests meanwhile, and continues on a new layer of its own. Files that both had are in memory once, until
neither has them any more.
"""

import asyncio
from pathlib import Path
from typing import Any, Final

from sandbox.errors import CannotCopy, CannotRestore, SandboxError
from sandbox.isolators import apptainer, bubblewrap
from sandbox.isolators.layers.stacking import Stacked, Stacker
from sandbox.lifetime import label, wire
from sandbox.lifetime.client import SocketSandbox
from sandbox.protocol import Sandbox, SandboxHandle

KINDS: Final = frozenset({apptainer.KIND, bubblewrap.KIND})
WITHIN_S: Final = 15.0


class Copies:
    """Copies between sandboxes of one node, for one process."""

    def __init__(self) -> None:
        self._stacker = Stacker()

    async def copy(self, source: SandboxHandle, target: Sandbox, *, turn: int) -> None:
        """Makes of a sandbox that was just marked what another one is, which has begun no later turn than this one.

        Raises `CannotCopy` where both are as they were, `CannotRestore` where the target is of no use.
        """
        _check(source, target.handle)
        assert isinstance(target, SocketSandbox)
        places = await target.places()
        await self._stacker.warm()
        stacked, mounting = Stacked(error="the source has not answered"), False
        try:
            async with asyncio.timeout(WITHIN_S), wire.WireConnection(source) as connection:
                await connection.request({"op": "lend", "turn": turn})
                head, data = await connection.answer()
                _lent(source, head)
                mounting = True
                stacked = await self._stacker.stack(source.pid, target.handle.pid, places)
                await connection.request({"op": "sealed", "sealed": stacked.sealed})
                total = wire.checked(source, await connection.answer()).header.get("sealed", 0)
        except TimeoutError:
            raise _failed(source, f"it took {WITHIN_S:.0f} s", spoilt=mounting) from None
        except SandboxError as error:
            if isinstance(error, CannotRestore | CannotCopy):
                raise
            raise _failed(source, str(error), spoilt=not stacked.error) from error
        if stacked.error:
            raise _failed(source, stacked.error, spoilt=stacked.spoilt)
        await target.restore_below(data, total)

    async def aclose(self) -> None:
        await self._stacker.aclose()


def beside(target: SandboxHandle, sandbox_id: str) -> SandboxHandle:
    """The sandbox of this id that lies on the same node. Raises `CannotCopy` where there is none."""
    directory = Path(target.directory).parent / sandbox_id
    made = label.read(directory) if sandbox_id.isalnum() else None
    if made is None:
        raise CannotCopy(f"sandbox {sandbox_id} cannot be copied: it is not, or no more, on {target.node}")
    return label.handle_of(directory, made)


def _check(source: SandboxHandle, target: SandboxHandle) -> None:
    """Raises `CannotCopy`."""
    if source.kind not in KINDS or (source.kind, source.node) != (target.kind, target.node):
        raise _failed(source, f"it is of {source.kind} on {source.node}, the new one of {target.kind} on {target.node}")
    made = label.read(Path(source.directory))
    if made is None or not made.alive:
        raise _failed(source, "it is gone")
    if made.disk:
        raise _failed(source, f"its files lie on disk ({made.writable}), and go with it")


def _lent(source: SandboxHandle, head: dict[str, Any]) -> None:
    """Raises `CannotCopy` where it holds what no copy can have, and `SandboxError`."""
    if lost := wire.checked(source, wire.WireAnswer(head, b"")).header.get("lost"):
        raise _failed(source, f"{str(lost)[:500]} would be lost", spoilt=False)


def _failed(source: SandboxHandle, why: str, *, spoilt: bool = False) -> CannotCopy | CannotRestore:
    kind = CannotRestore if spoilt else CannotCopy
    return kind(f"sandbox {source.sandbox_id} cannot be copied: {why}")
