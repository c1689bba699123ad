"""A command line that confines a program of this host to its own modules.

For our own programs that read what a policy wrote. It is less than a sandbox: there is no server and no limit, only
bubblewrap around one process. Without its owner the process does not live on.
"""

import os
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final

from sandbox.isolators.bubblewrap import find_bwrap
from sandbox.isolators.bubblewrap_argv import USR_LINKS

_OPTIONS = ["--as-pid-1", "--die-with-parent", "--new-session", "--proc", "/proc"]
_SYSTEM = ("/etc/ld.so.cache", "/etc/localtime", "/etc/alternatives")
_OWN: Final = Path(__file__).parents[2]
_INSTALLED: Final = {"site-packages", "dist-packages"}  # directories that hold what pip installed, and nothing else
_MODULES: Final = {".py", ".so", ".zip", ".egg", ".dist-info", ".egg-info"}
_MAY_CHANGE_USER: Final = (1 << 6) | (1 << 7) | (1 << 21)  # CAP_SETGID, CAP_SETUID, and CAP_SYS_ADMIN to mount


def confined(argv: Sequence[str], packages: Collection[str]) -> list[str]:
    """No network, nothing writable, no other process in sight. Raises `SandboxUnavailable`.

    Of a directory of modules that holds other things too, such as a project's, it sees the modules alone; of ours, only
    `packages`. The program is process 1 of what it starts, which can neither end nor stop it. Root's may become another
    user, who is one on the host as well.

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
    places = _python_places(packages)
    for above in sorted({str(each) for place in places for each in Path(place).parents[:-1]}):
        options += ["--perms", "0755", "--dir", above]  # by itself bubblewrap keeps them to root
    for place in places:
        options += ["--ro-bind", place, place]
    return [find_bwrap(), *options, *_namespaces(), *_OPTIONS, "--dev", "/dev", "--chdir", os.sep, "--", *argv]


def _namespaces() -> list[str]:
    """All of them. Root's own user namespace would have no other user, so root has none, where it may do without."""
    drop = ["--cap-drop", "ALL"]
    if os.geteuid() != 0 or _rights() & _MAY_CHANGE_USER != _MAY_CHANGE_USER:
        return ["--unshare-all", *drop]
    keep = ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]  # until it has become the other user
    return ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try", *drop, *keep]


def _rights() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("CapEff:")).split()[1], 16)


def _python_places(packages: Collection[str]) -> list[str]:
    """Directories of this interpreter, and of what it imports; what lies in another one comes with that."""
    whole = {Path(place).absolute() for place in (sys.prefix, sys.base_prefix)}
    for place in {Path(each).absolute() for each in sys.path if each}:
        if place == _OWN and place.name not in _INSTALLED:
            whole |= {place / name for name in packages}
        elif place.name in _INSTALLED or any(place.is_relative_to(each) for each in whole):
            whole.add(place)
        elif place.is_dir():
            whole |= {child for child in place.iterdir() if _is_module(child)}
    places = {each for place in whole if place.exists() for each in (*_behind(place), place)}
    return sorted(
        str(place) for place in places if place.parts[:2] != (os.sep, "usr") and not places & {*place.parents}
    )


def _is_module(path: Path) -> bool:
    return path.suffix in _MODULES or (path.name.isidentifier() and any(path.glob("*.py")))


def _behind(place: Path) -> Iterator[Path]:
    """Every place that links lead to on the way to one, such as a project's `.venv` on another disk."""
    while place.is_symlink():
        place = Path(os.path.normpath(place.parent / place.readlink()))
        yield place
    yield place.resolve()
