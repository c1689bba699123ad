"""The export of RUN: the files that the agent made, changed or removed, as GNU tar's incremental archive.

INIT notes the state of every writable directory in a snapshot; at the end of RUN tar compares with it. The archive is
unpacked in the fresh sandbox of the verifier before the tests are there. An agent that spoils the snapshot gets an
archive of everything, and one that spoils the archive has spoiled its own work.
"""

import asyncio
import zlib
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

from prorl_mq.schema.faults import Cause
from sandbox.errors import SandboxError
from sandbox.protocol import ProcessResult, Sandbox
from workers.handlers.harbor.row import CarriedPath, TaskRow

RAW_BYTES = 128 << 20
PACKED_BYTES = 12 << 20  # an export is bounded by 16 MiB
TAR_S = 300.0
ARTIFACTS = "/logs/artifacts"
_SNAPSHOT = "/tmp/.prorl-harbor-snapshot"  # noqa: S108 - inside
_OPTIONS = ("--no-check-device", "--ignore-failed-read", "--warning=none", "-C", "/")
_NOTE = """
set -eu
tar --version | grep -q "GNU tar" || exit 90
snapshot=$1
shift
rm -f "$snapshot" "$snapshot.after"
tar -c -f /dev/null -g "$snapshot" "$@"
until [ "$snapshot.after" -nt "$snapshot" ]; do touch "$snapshot.after"; done
"""
_EMPTY = """
for place; do
  [ ! -L "$place" ] || rm -f -- "$place"
  if [ -d "$place" ]; then find "$place" -mindepth 1 -delete; else mkdir -p "$place"; fi
done
"""
# What leads to the tests would show them under a name of the agent's.
_UNLINK = """
find "$@" -type l -exec sh -c '
for link; do
  case $(readlink -m -- "$link") in
    /tests|/tests/*|/logs/verifier|/logs/verifier/*) rm -f -- "$link" ;;
  esac
done' sh {} +
"""


class NoTar(Exception):
    """An image without GNU tar: what an agent changes there cannot be carried into another sandbox."""

    retryable = False
    cause = Cause.ROW


def places(row: TaskRow) -> list[str]:
    """The directories that are carried: all that the agent can write to but the verifier's own."""
    own = ("/logs", "/solution")  # the second in checks of a task
    return [*row.writable, *(place for place in row.empty if place not in own), "/logs/agent", ARTIFACTS]


async def note(sandbox: Sandbox, row: TaskRow) -> None:
    """Notes the state of the directories; what changes from now on is carried. Raises `NoTar`."""
    done = await _shell(sandbox, _NOTE, _SNAPSHOT, *_OPTIONS, *_inner(places(row)))
    if done.exit_code == 90:
        raise NoTar("its image has no GNU tar, which carries what the agent changed to the verifier: install tar in it")
    if done.exit_code != 0:
        raise SandboxError(f"tar cannot note what is there: {done.stderr[-300:]!r}")


async def collect(sandbox: Sandbox, row: TaskRow) -> dict[str, Any]:
    """The export of RUN: `archive`, or `too_large` with the bytes that there would be. Raises `SandboxError`."""
    if row.separate:
        done = await _artifacts(sandbox, row.carried)
    else:
        done = await _tar(sandbox, ["-g", _SNAPSHOT, *_inner(places(row))])
        if done.exit_code not in {0, 1}:  # 1: a file changed meanwhile
            await sandbox.run(["rm", "-rf", _SNAPSHOT])
            done = await _tar(sandbox, ["-G", *_inner(places(row))])  # everything, and no snapshot: a disk may be full
    if done.exit_code not in {0, 1}:
        raise SandboxError(f"tar cannot pack what the agent made: {done.stderr[-300:]!r}")
    if done.dropped_bytes:
        return {"too_large": len(done.stdout) + done.dropped_bytes}
    packed = await asyncio.to_thread(zlib.compress, done.stdout, 1)
    return {"archive": packed} if len(packed) <= PACKED_BYTES else {"too_large": len(packed)}


async def put(sandbox: Sandbox, row: TaskRow, archive: bytes) -> None:
    """Makes of a fresh sandbox what the agent left, as far as it is carried. Raises `SandboxError`."""
    data = await asyncio.to_thread(zlib.decompress, archive)
    incremental = () if row.separate else ("-g", "/dev/null")
    command = ["tar", "-x", "-f", "-", *incremental, "--no-same-owner", "--warning=none", "-C", "/"]
    done = await sandbox.run(command, stdin=data, timeout_s=TAR_S, alone=True)
    if done.exit_code != 0:
        raise SandboxError(f"tar cannot unpack what the agent made: {done.stderr[-300:]!r}")


async def clear(sandbox: Sandbox, *directories: str) -> None:
    """Makes directories, and empties those that are there."""
    done = await _shell(sandbox, _EMPTY, *directories)
    if done.exit_code != 0:
        raise SandboxError(f"{', '.join(directories)} cannot be emptied: {done.stderr[-300:]!r}")


async def unlink(sandbox: Sandbox, row: TaskRow) -> None:
    """Removes links that the agent left to where the tests are now."""
    carried = [*(each.path for each in row.carried), ARTIFACTS] if row.separate else places(row)
    await _shell(sandbox, _UNLINK, *carried)


async def _artifacts(sandbox: Sandbox, carried: Sequence[CarriedPath]) -> ProcessResult:
    """The declared paths that are there."""
    wanted = [*carried, CarriedPath(path=ARTIFACTS)]
    options = [f"--exclude={pattern}" for each in wanted for pattern in each.exclude]
    exist = 'for path; do [ ! -e "$path" ] || printf "%s\\0" "${path#/}"; done'
    there = await _shell(sandbox, exist, *(str(PurePosixPath(each.path)) for each in wanted))
    found = sorted({path.decode() for path in there.stdout.split(b"\0") if path})
    return await _tar(sandbox, [*options, "--", *found])


async def _tar(sandbox: Sandbox, words: Sequence[str]) -> ProcessResult:
    return await sandbox.run(["tar", "-c", "-f", "-", *_OPTIONS, *words], timeout_s=TAR_S, output_bytes=RAW_BYTES)


def _inner(directories: Sequence[str]) -> list[str]:
    return [directory.removeprefix("/") for directory in directories]


async def _shell(sandbox: Sandbox, text: str, *arguments: str) -> ProcessResult:
    return await sandbox.run(["sh", "-c", text, "sh", *arguments], timeout_s=TAR_S)
