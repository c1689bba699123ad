"""Our part of an Apptainer sandbox: a small read-only directory on the host, shared by many sandboxes."""

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath

from sandbox.isolators.bubblewrap_argv import INTERPRETER, PYTHON_DIR, SERVER
from sandbox.isolators.payload import server_code, server_source

SYSTEM_PATH = "/usr/bin:/usr/local/bin"


def runtime(
    parent: Path, interpreter: str | None, files: Mapping[str, str], edit: Callable[[bytes], bytes] | None = None
) -> Path:
    """A directory below `parent` with `opt` (our program, if the image has an interpreter for it) and `files` in it.

    Its name is a digest of its content, so it is made once, whole or not at all, and never changes. Blocks.
    `edit`: what the control of an attack makes of the server's text.
    """
    server = b""
    if interpreter:
        server = edit(server_source()) if edit else _server(interpreter)
    parts = [(interpreter or "").encode(), server, *(part.encode() for item in sorted(files.items()) for part in item)]
    digest = hashlib.blake2b(b"\0".join(parts), digest_size=12).hexdigest()
    place = parent / digest
    if place.is_dir():
        return place
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=parent) as name:
        fresh = Path(name, "runtime")
        opt = fresh / "opt"
        (opt / PurePosixPath(PYTHON_DIR).name).mkdir(parents=True)
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
    return place


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
