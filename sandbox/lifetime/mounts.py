"""Mounts that an isolator left below a sandbox's directory: removing the directory must not reach through them."""

import ctypes
import logging
import os
import re
import shutil
import subprocess
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
MNT_DETACH = 2
ESCAPED = re.compile(rb"\\([0-7]{3})")
HELPERS = ("fusermount3", "fusermount")  # for who may not unmount: FUSE's own way
log = logging.getLogger(__name__)


def below(directory: Path) -> list[Path]:
    """Mount points at or below a directory, the deepest first."""
    top = os.path.realpath(directory)
    points = (line.split(b" ", 5)[4] for line in MOUNTS.read_bytes().splitlines())
    paths = (Path(os.fsdecode(ESCAPED.sub(lambda match: bytes([int(match[1], 8)]), point))) for point in points)
    return sorted((path for path in paths if path.is_relative_to(top)), key=lambda path: -len(path.parts))


def detach_below(directory: Path) -> bool:
    """Unmounts all below a directory; False if a mount cannot be removed: it stays, and is logged."""
    for point in below(directory):
        if not _detached(point):
            log.warning("%s is mounted and cannot be unmounted: %s stays", point, directory)
            return False
    return True


def _detached(point: Path) -> bool:
    if ctypes.CDLL(None, use_errno=True).umount2(os.fsencode(point), MNT_DETACH) == 0:
        return True
    for helper in filter(None, map(shutil.which, HELPERS)):
        done = subprocess.run([helper, "-u", "-z", str(point)], check=False, stderr=subprocess.DEVNULL)
        if done.returncode == 0:
            return True
    return False
