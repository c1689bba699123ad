"""The size of a SIF file unpacked, by the list that `unsquashfs` makes of it, before anything of it is written.

Whoever made the file may be hostile: a file system of some kilobytes may hold a terabyte, or millions of names.
"""

import re
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from sandbox.images.entry import BLOCK_BYTES
from sandbox.images.layers.tar import Bounds, Hostile

HEAD: Final = struct.Struct(
    "<80x4q"
)  # of the file: descriptors that are free, all of them, their place and their bytes
DESCRIPTOR: Final = struct.Struct("<i?12xqq40x128x2i376x")  # kind, whether it is used, place, bytes, file system, part
PARTITION, SQUASHFS, ROOTS, MOST_DESCRIPTORS = 0x4004, 1, {1, 2}, 1_000
LINE: Final = re.compile(rb"[-a-z][-a-zA-Z]{9} \d+/\d+ +(\d+) \d{4}-")
LONGEST_LINE: Final = 1 << 16


def weigh(file: Path, unsquashfs: str, bounds: Bounds) -> None:
    """Raises `Hostile` for a file that unpacks to more than its bounds, or whose file system is not to be listed."""
    with file.open("rb") as stream:
        places = _roots(stream)
    left, entries = bounds.bytes, 0
    for place in places:
        for line in _listed(file, unsquashfs, place):
            entries += 1
            found = LINE.match(line)
            left -= -(-int(found[1]) // BLOCK_BYTES) * BLOCK_BYTES if found and line[:1] == b"-" else 0
            if left < 0 or entries > bounds.entries:
                raise Hostile(f"it unpacks to more than {bounds.bytes} bytes or {bounds.entries} entries")


def _roots(stream: BinaryIO) -> list[int]:
    """Places of the file systems that a container may have as its root."""
    try:
        _, count, place, _ = HEAD.unpack(stream.read(HEAD.size))
        stream.seek(place)
        table = stream.read(DESCRIPTOR.size * min(count, MOST_DESCRIPTORS))
        descriptors = list(DESCRIPTOR.iter_unpack(table))
    except (struct.error, ValueError, OverflowError, OSError) as error:
        raise Hostile(f"it has no table of its parts: {error}") from error
    found = []
    for kind, used, at, _, system, part in descriptors:
        if used and kind == PARTITION and part in ROOTS:
            if system != SQUASHFS:
                raise Hostile(f"its file system is of kind {system}, and {SQUASHFS} (SquashFS) alone is unpacked")
            found.append(at)
    if not found or count > MOST_DESCRIPTORS:
        raise Hostile("it has no file system for a container, or more parts than any image has")
    return found


def _listed(file: Path, unsquashfs: str, place: int) -> Iterator[bytes]:
    words = [unsquashfs, "-o", str(place), "-lln", str(file)]
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    try:
        while line := process.stdout.readline(LONGEST_LINE):
            yield line
    except BaseException:
        process.kill()
        raise
    finally:
        process.stdout.close()
        code = process.wait()
    if code != 0:
        raise Hostile(f"its file system cannot be listed: unsquashfs ended with exit code {code}")
