"""Merges unpacked layers into one directory: files are hard links to those of the layers.

That is safe because layers and images are only read: sandboxes mount them read-only, and what they may write to is a
copy. Where a link cannot be made (another file system, too many links) the file is copied.
"""

import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from sandbox.images.layers.tar import Whiteouts

PLACES: Final = ("proc", "sys", "dev", "tmp", "run", "etc", "var/tmp", "root")  # that isolators mount over
UNLINKABLE: Final = {errno.EXDEV, errno.EMLINK, errno.EPERM}


def merge(layers: Sequence[Path], target: Path) -> None:
    """`layers` from the lowest up, each an entry of the cache with `image` and `whiteouts`. `target` is empty."""
    for layer in layers:
        whiteouts = msgspec.json.decode((layer / "whiteouts").read_bytes(), type=Whiteouts)
        for path in whiteouts.opaque:
            _empty(target, path)
        for path in whiteouts.removed:
            _take_away(target, path)
        _lay(layer / "image", target)
    for place in PLACES:
        _mount_point(target, place)


def _lay(layer: Path, target: Path) -> None:
    """One layer over those below it. Walks by names below `layer`, whose links are never followed."""
    target.chmod(layer.stat().st_mode & 0o777 | 0o700)
    for entry in os.scandir(layer):
        place = target / entry.name
        there = place.is_symlink() or place.exists()
        if entry.is_dir(follow_symlinks=False):
            if there and (place.is_symlink() or not place.is_dir()):
                place.unlink()
                there = False
            if not there:
                place.mkdir()
            _lay(Path(entry.path), place)
            continue
        if there:
            _remove(place)
        try:
            os.link(entry.path, place, follow_symlinks=False)
        except OSError as error:
            if error.errno not in UNLINKABLE:
                raise
            shutil.copy2(entry.path, place, follow_symlinks=False)


def _mount_point(target: Path, path: str) -> None:
    """A file or a link there is the image's own business: it could lead out of the image."""
    at = target
    for part in path.split("/"):
        at /= part
        if at.is_symlink() or (at.exists() and not at.is_dir()):
            return
        at.mkdir(exist_ok=True)


def _place(target: Path, path: str) -> Path | None:
    """The place of a whiteout's path; None if a link or nothing leads there: then there is nothing to take away."""
    at = target
    for part in path.split("/")[:-1]:
        at /= part
        if at.is_symlink() or not at.is_dir():
            return None
    return target / path


def _take_away(target: Path, path: str) -> None:
    place = _place(target, path)
    if place is not None and (place.is_symlink() or place.exists()):
        _remove(place)


def _empty(target: Path, path: str) -> None:
    place = _place(target, path) if path else target
    if place is not None and place.is_dir() and not place.is_symlink():
        for inner in list(place.iterdir()):
            _remove(inner)


def _remove(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink()
