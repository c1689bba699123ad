"""Unpacks and merges layers, and weighs SIF files, in a process of its own, which is the sandboxes' user.

python -m sandbox.images.layers.program USER GROUP unpack COMPRESSION BYTES TARGET <BLOB   makes TARGET/image, whiteouts
python -m sandbox.images.layers.program USER GROUP merge TARGET LAYER...                   makes TARGET/image
python -m sandbox.images.layers.program USER GROUP weigh BYTES ENTRIES UNSQUASHFS FILE     looks at a SIF file

Exit code 1: it failed, and standard error says why; 3: what it was given is damaged or hostile, and trying again is no
use.
"""

import gzip
import os
import resource
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, cast

import msgspec

from sandbox.images.layers.merging import merge
from sandbox.images.layers.tar import Bounds, Hostile, unpack
from sandbox.images.layers.weighing import weigh

DAMAGED: Final = (
    Hostile, tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, MemoryError, UnicodeError,
    RecursionError, OverflowError,  # of headers in headers, and of numbers that no file has
)  # fmt: skip
MEMORY_BYTES: Final = 2 << 30
REFUSED: Final = 3
MOST_PADDING_BYTES: Final = 64 << 20


def main(words: list[str]) -> int:
    user, group, action, *rest = words
    _become(int(user), int(group))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    os.umask(0o022)
    try:
        if action == "merge":
            target, *layers = map(Path, rest)
            (target / "image").mkdir()
            merge(layers, target / "image")
        elif action == "weigh":
            most, entries, unsquashfs, file = rest
            weigh(Path(file), unsquashfs, Bounds(int(most), int(entries)))
        else:
            compression, most, target_name = rest
            _unpack(compression, Bounds(int(most)), Path(target_name))
    except DAMAGED as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return REFUSED
    except (OSError, ValueError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


def _become(user: int, group: int) -> None:
    """From here on, what is read is not trusted."""
    if os.geteuid() == 0 and user != 0:
        os.setgroups([])
        os.setgid(group)
        os.setuid(user)


def _unpack(compression: str, bounds: Bounds, target: Path) -> None:
    (target / "image").mkdir()
    with _plain(compression, sys.stdin.buffer) as stream:
        found = unpack(stream, str(target / "image"), bounds)
        rest = 0
        while data := stream.read(1 << 20):  # the padding of the archive: zstd shall not be cut off
            rest += len(data)
            if rest > MOST_PADDING_BYTES:
                raise Hostile(f"more than {MOST_PADDING_BYTES} bytes follow its end")
    (target / "whiteouts").write_bytes(msgspec.json.encode(found))


@contextmanager
def _plain(compression: str, blob: BinaryIO) -> Iterator[BinaryIO]:
    if compression == "none":
        yield blob
    elif compression == "gzip":
        with gzip.GzipFile(fileobj=blob) as stream:
            yield cast("BinaryIO", stream)
    else:
        with _zstd(blob) as stream:
            yield stream


@contextmanager
def _zstd(blob: BinaryIO) -> Iterator[BinaryIO]:
    try:
        process = subprocess.Popen(["zstd", "-d", "-c", "-q", "--memory=512MB"], stdin=blob, stdout=subprocess.PIPE)
    except FileNotFoundError:
        raise OSError("the program zstd (Debian's package zstd) is missing: install it") from None
    assert process.stdout is not None
    try:
        yield cast("BinaryIO", process.stdout)
    except BaseException:
        process.kill()
        raise
    finally:
        process.stdout.close()
        code = process.wait()
    if code != 0:
        raise Hostile(f"zstd ended with exit code {code}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
