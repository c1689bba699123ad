"""The command line of bubblewrap: a pure function of what the sandbox is to be."""

import errno
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from sandbox.protocol import Mount

SERVER = "/opt/prorl/server"
INTERPRETER = "/opt/prorl/execd"  # a link to Python, so that an agent's `pkill python` spares the server
PYTHON_DIR = "/opt/prorl/python"
HOME = "/home/agent"
WORKSPACE = "/workspace"
USER_ID = 1000
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
SCRATCH = ("/tmp", "/var/tmp", "/run", "/dev/shm", HOME, WORKSPACE)  # noqa: S108 - inside, not here
USR_LINKS = ("bin", "lib", "lib32", "lib64", "libx32", "sbin")
HOST_ETC = (
    "alternatives", "ca-certificates", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "mime.types",
    "protocols", "python3", "services", "ssl/certs", "ssl/openssl.cnf",
)  # fmt: skip
OURS = ("dev", "proc", "sys", "run", "tmp", "workspace", "mnt", "media", "boot", "lost+found")
SPREAD = ("var", "opt", "home")  # of an image: bound piece by piece, for we add to them
OURS_WITHIN = ("tmp", "run", "lock", "prorl", "agent")


class BubblewrapLayout(msgspec.Struct, frozen=True, kw_only=True):
    """Input of `bubblewrap_argv`. Numbers are descriptors that the new process inherits."""

    hostname: str
    network: bool
    scratch_bytes: int  # of each writable place: they live in memory
    info: int
    server: int | None  # None: nothing inside can run it
    files: dict[str, int]  # small files made for the sandbox: path inside, descriptor
    interpreter: str = "/usr/bin/python3"
    image: str | None = None
    python_dir: str | None = None
    mounts: Sequence[Mount] = ()
    writable: Mapping[str, str | None] = {}  # of the image: what is bound there; None: an empty place in memory
    empty_files: Mapping[str, int] = {}  # to be covered: path inside, descriptor of an empty file
    empty_directories: Sequence[str] = ()
    holder_filter: int | None = None


def bubblewrap_options(layout: BubblewrapLayout) -> list[str]:
    """All namespaces apart, no capabilities, an empty environment, and nothing of the host but what is listed."""
    argv = ["--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL"]
    argv += ["--share-net"] if layout.network else []
    argv += ["--uid", str(USER_ID), "--gid", str(USER_ID), "--hostname", layout.hostname]
    argv += ["--clearenv", "--setenv", "PATH", PATH, "--setenv", "LANG", "C.UTF-8", "--info-fd", str(layout.info)]
    argv += _image_root(Path(layout.image)) if layout.image else _host_root()
    argv += ["--proc", "/proc", "--dev", "/dev"]
    for path, descriptor in layout.empty_files.items():
        argv += ["--perms", "0444", "--ro-bind-data", str(descriptor), path]
    for path in layout.empty_directories:
        argv += ["--perms", "0555", "--size", "4096", "--tmpfs", path, "--remount-ro", path]
    argv += ["--seccomp", str(layout.holder_filter)] if layout.holder_filter is not None else []
    places: dict[str, str | None] = {**dict.fromkeys(SCRATCH), **layout.writable}
    for place, source in sorted(places.items(), key=lambda each: each[0]):  # what is below another one comes behind it
        if source is not None:
            argv += ["--bind", source, place]
            continue
        argv += ["--perms", "1777" if place.endswith(("tmp", "shm")) else "0755"]
        argv += ["--size", str(layout.scratch_bytes), "--tmpfs", place]
    for path, descriptor in layout.files.items():
        argv += ["--perms", "0444", "--ro-bind-data" if layout.image else "--file", str(descriptor), path]
    argv += ["--perms", "0755", "--dir", "/opt", "--perms", "0755", "--dir", "/opt/prorl"]
    if layout.server is not None:
        argv += ["--perms", "0444", "--file", str(layout.server), SERVER, "--symlink", layout.interpreter, INTERPRETER]
    if layout.python_dir:
        argv += ["--ro-bind", layout.python_dir, PYTHON_DIR]
    for mount in layout.mounts:
        argv += ["--bind" if mount.writable else "--ro-bind", mount.source, mount.target]
    return [*argv, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", WORKSPACE]


def options_data(layout: BubblewrapLayout) -> bytes:
    """The options as bubblewrap reads them. Raises `OSError` for one that would be read as several: a path that has the
    character between two options could bind anything of the host.
    """
    options = bubblewrap_options(layout)
    split = next((each for each in options if "\0" in each), None)
    if split is not None:
        raise OSError(errno.EINVAL, f"a path of the sandbox has a null character: {split!r}")
    return "\0".join(options).encode()


def bubblewrap_argv(bwrap: str, options: int, payload: Sequence[str]) -> list[str]:
    """The command line itself. The options come on a descriptor: process 1 shows its command line to all inside."""
    return [bwrap, "--as-pid-1", "--args", str(options), "--", *payload]


def server_argv(listener: int, *, sealed: bool) -> list[str]:
    """The server as process 1, which nothing inside can kill."""
    return [INTERPRETER, "-I", "-S", SERVER, *([] if sealed else ["--bare"]), str(listener)]


def _host_root() -> list[str]:
    """The host's programs, and of its settings only what programs need to start."""
    argv = ["--ro-bind", "/usr", "/usr", "--perms", "0755", "--dir", "/etc", "--perms", "0755", "--dir", "/etc/ssl"]
    for name in USR_LINKS:
        link = Path("/", name)
        if link.is_symlink():
            argv += ["--symlink", f"usr/{name}", f"/{name}"]
        elif link.is_dir():
            argv += ["--ro-bind", f"/{name}", f"/{name}"]
    for name in HOST_ETC:
        argv += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    return argv


def _image_root(image: Path) -> list[str]:
    """An unpacked image, entry by entry, so that it need not have the places we mount on."""
    argv = []
    for entry in sorted(image.iterdir()):
        if entry.name in SPREAD and entry.is_dir():
            argv += ["--perms", "0755", "--dir", f"/{entry.name}"]
            for inner in sorted(entry.iterdir()):
                argv += [] if inner.name in OURS_WITHIN else _entry(inner, f"/{entry.name}/{inner.name}")
        elif entry.name not in OURS:
            argv += _entry(entry, f"/{entry.name}")
    return argv


def _entry(source: Path, target: str) -> list[str]:
    if source.is_symlink():
        return ["--symlink", str(source.readlink()), target]
    return ["--ro-bind", str(source), target]
