"""Finds the Python of an unpacked image, as its own programs would find it."""

import os
import re
from pathlib import Path

from sandbox.isolators.bubblewrap_argv import PATH

STEPS = 400  # a path that needs more goes round in circles
OLD = re.compile(r"/python3\.[0-7]$")  # the execution server needs 3.8


def python_of(image: Path) -> str | None:
    """Real path of `python3` in the image, as seen inside. None: the image has none that is new enough."""
    for directory in PATH.split(":"):
        found = resolved(image, f"{directory}/python3")
        if found is not None and os.access(image / found[1:], os.X_OK) and not OLD.search(found):
            return found
    return None


def resolved(image: Path, path: str) -> str | None:
    """A path inside an image without links, none of which leads out of the image. None: there is no such file."""
    left, done = path.split("/")[::-1], "/"
    for _ in range(STEPS):
        if not left:
            return done if (image / done[1:]).is_file() else None
        name = left.pop()
        if name in {"", "."}:
            continue
        if name == "..":
            done = os.path.dirname(done)  # noqa: PTH120 - text, not a file of this host
            continue
        step = os.path.join(done, name)  # noqa: PTH118
        here = image / step[1:]
        if not here.is_symlink():
            done = step
            continue
        target = str(here.readlink())
        left += target.split("/")[::-1]
        done = "/" if target.startswith("/") else done
    return None
