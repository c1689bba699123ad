"""A command line that confines a program of this host to its own files.

For our own programs that read what a policy wrote. It is less than a sandbox: there is no server and no limit, only
bubblewrap around one process. Without its owner the process does not live on.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from sandbox.isolators.bubblewrap import find_bwrap
from sandbox.isolators.bubblewrap_argv import USR_LINKS

_OPTIONS = ["--unshare-all", "--as-pid-1", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--proc", "/proc"]
_SYSTEM = ("/etc/ld.so.cache", "/etc/localtime", "/etc/alternatives")


def confined(argv: Sequence[str]) -> list[str]:
    """No network, nothing writable, no other process in sight. Raises `SandboxUnavailable`.

    The program is process 1 of what it starts, which can neither end nor stop it.

    Descriptors pass. The environment does, so its owner must give a clean one.
    """
    options = ["--ro-bind", "/usr", "/usr"]
    for name in USR_LINKS:
        link = Path("/", name)
        if link.is_symlink():
            options += ["--symlink", str(link.readlink()), str(link)]
        elif link.is_dir():
            options += ["--ro-bind", str(link), str(link)]
    for place in _SYSTEM:
        options += ["--ro-bind-try", place, place]
    for place in _python_places():
        options += ["--ro-bind", place, place]
    return [find_bwrap(), *options, *_OPTIONS, "--dev", "/dev", "--chdir", os.sep, "--", *argv]


def _python_places() -> list[str]:
    """Directories of this interpreter and of what it imports; what lies in another one comes with that.

    A link in one of them, such as a project's `.venv` on another disk, is followed: what it leads to is bound where it
    really is.
    """
    found = {Path(place).absolute() for place in (sys.prefix, sys.base_prefix, *filter(None, sys.path))}
    places = {each for place in found if place.is_dir() for each in (*_behind(place), place)}
    return sorted(
        str(place) for place in places if place.parts[:2] != (os.sep, "usr") and not places & {*place.parents}
    )


def _behind(place: Path) -> Iterator[Path]:
    """Every directory that links lead to on the way to a place."""
    while place.is_symlink():
        place = Path(os.path.normpath(place.parent / place.readlink()))
        yield place
    yield place.resolve()
