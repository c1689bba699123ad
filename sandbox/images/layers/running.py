"""Runs the program that unpacks and merges layers and weighs SIF files; it ends when its caller is cancelled."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Final

from sandbox.errors import ImageUnavailable
from sandbox.images.layers.program import REFUSED
from sandbox.images.layers.tar import Bounds
from sandbox.images.tool import communicated

WORDS_BYTES: Final = 2_000


async def unpack(blob: Path, compression: str, most_bytes: int, target: Path, user: tuple[int, int]) -> None:
    """Makes `target/image` and `target/whiteouts` of a layer. Raises `ImageUnavailable`."""
    try:
        stream = await asyncio.to_thread(blob.open, "rb")
    except OSError as error:
        raise ImageUnavailable(f"the layer {blob.name[:12]} is gone from the storage: {error.strerror}") from error
    with stream:
        words = ["unpack", compression, str(most_bytes), str(target)]
        await _run(words, user, f"the layer {blob.name[:12]} cannot be unpacked", stream)


async def merge(layers: Sequence[Path], target: Path, user: tuple[int, int]) -> None:
    """Makes `target/image` of entries of the cache. Raises `ImageUnavailable`."""
    await _run(["merge", str(target), *map(str, layers)], user, "its layers cannot be merged")


async def weigh(file: Path, bounds: Bounds, unsquashfs: str, user: tuple[int, int]) -> None:
    """Raises `ImageUnavailable` for a SIF file that unpacks to more."""
    await _run(["weigh", str(bounds.bytes), str(bounds.entries), unsquashfs, str(file)], user, "it cannot be unpacked")


async def _run(words: Sequence[str], user: tuple[int, int], what: str, stdin: BinaryIO | None = None) -> None:
    argv = [sys.executable, "-P", "-m", "sandbox.images.layers.program", *map(str, user), *words]
    process = await asyncio.create_subprocess_exec(
        *argv, start_new_session=True, stdin=stdin or asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, said = await communicated(process)
    if process.returncode != 0:
        told = said[-WORDS_BYTES:].decode("utf-8", "replace").strip() or f"exit code {process.returncode}"
        raise ImageUnavailable(f"{what}: {told}", final=process.returncode == REFUSED)
