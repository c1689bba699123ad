"""Our part of an Apptainer sandbox: a small read-only directory on the host, shared by many sandboxes.

Each release, and each size of scratch space that a sandbox was given, makes another one. A sandbox holds its own by a
lock; of those that no sandbox holds, the last ones used are kept.
"""

import contextlib
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath

from sandbox.host.trees import remove_tree
from sandbox.images.cache import Image
from sandbox.images.entry import REMOVED, is_entry, remove_unused
from sandbox.images.file_lock import try_lock
from sandbox.isolators.bubblewrap_argv import INTERPRETER, PYTHON_DIR, SERVER
from sandbox.isolators.payload import server_code, server_source

SYSTEM_PATH = "/usr/bin:/usr/local/bin"
KEPT = 16  # runtimes that no sandbox holds
LEFT_S = 3600.0  # what was being made so long ago was made by a process that is gone
NEW = ".new-"


def runtime(
    parent: Path, interpreter: str | None, files: Mapping[str, str], edit: Callable[[bytes], bytes] | None = None
) -> Image:
    """A directory below `parent` with `opt` (our program, if the image has an interpreter for it) and `files` in it.

    Its name is a digest of its content, so it is made once, whole or not at all, and never changes. It stays until it
    is closed, and for as long as a process has inherited its descriptor. Blocks.
    `edit`: what the control of an attack makes of the server's text.
    """
    server = b""
    if interpreter:
        server = edit(server_source()) if edit else _server(interpreter)
    parts = [(interpreter or "").encode(), server, *(part.encode() for item in sorted(files.items()) for part in item)]
    digest = hashlib.blake2b(b"\0".join([b"lock", *parts]), digest_size=12).hexdigest()
    place = parent / digest
    while (held := _held(place)) is None:
        parent.mkdir(parents=True, exist_ok=True)
        _make_room(parent)
        _make(place, interpreter, server, files)
    return held


def _held(place: Path) -> Image | None:
    """None where it is not, or is being removed."""
    try:
        descriptor = os.open(place / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    if try_lock(descriptor, exclusive=False) and is_entry(place, descriptor):
        os.utime(descriptor)
        return Image(place, descriptor)
    os.close(descriptor)
    return None


def _make(place: Path, interpreter: str | None, server: bytes, files: Mapping[str, str]) -> None:
    with tempfile.TemporaryDirectory(prefix=NEW, dir=place.parent) as name:
        fresh = Path(name, "runtime")
        opt = fresh / "opt"
        (opt / PurePosixPath(PYTHON_DIR).name).mkdir(parents=True)
        (fresh / "lock").touch()
        if interpreter:
            (opt / PurePosixPath(SERVER).name).write_bytes(server)
            (opt / PurePosixPath(INTERPRETER).name).symlink_to(interpreter)
        for path, text in files.items():
            target = fresh / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        _open_to_all(fresh)
        try:
            fresh.rename(place)
        except OSError:
            if not place.is_dir():  # else another process was faster
                raise


def _make_room(parent: Path) -> None:
    """Removes what killed processes left, and all but the last ones used of those that no sandbox holds."""
    long_ago = time.time() - LEFT_S
    used: list[tuple[float, Path]] = []
    for path in parent.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process removes it, too
            if path.name.startswith(REMOVED) or (path.name.startswith(NEW) and path.stat().st_mtime < long_ago):
                remove_tree(path)
            elif not path.name.startswith(NEW):
                used.append(((path / "lock").stat().st_mtime, path))
    for _, path in sorted(used, reverse=True)[KEPT - 1 :]:
        remove_unused(path)


def _server(interpreter: str) -> bytes:
    """Compiled, if this host has the same Python to compile it with: that saves a tenth of a start."""
    name = PurePosixPath(interpreter).name
    found = shutil.which(name, path=SYSTEM_PATH) if name.startswith("python3.") else None
    return server_code(found) if found else server_source()


def _open_to_all(directory: Path) -> None:
    """Whatever the umask is: sandboxes of root read it as another user."""
    directory.chmod(0o755)
    for path in directory.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)
