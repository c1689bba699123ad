"""The command line and the configuration of Apptainer: pure functions of what the sandbox is to be."""

import csv
import errno
import io
from collections.abc import Mapping, Sequence

import msgspec

from sandbox.isolators.bubblewrap_argv import HOME, PYTHON_DIR, WORKSPACE
from sandbox.protocol import Mount

RUNTIME = "/opt/prorl"
SCRATCH = (WORKSPACE, HOME, "/run", "/dev/shm")  # noqa: S108 - inside; /tmp and /var/tmp exist without it
# From a directory that every user can enter. In a user namespace of its own, which may have one below it: Apptainer's.
# So nobody inside can make a further one.
NO_NAMESPACES = 'cd / && echo 1 >/proc/sys/user/max_user_namespaces && exec "$@"'
OUTER = ("--user", "--map-current-user", "--keep-caps", "/bin/sh", "-c", NO_NAMESPACES, "sh")
PLACES = (*SCRATCH, "/tmp", "/var/tmp")  # noqa: S108 - that can be written to
CONFIGURATION = """\
allow pid ns = yes
allow user ns = yes
config passwd = no
config group = no
config resolv_conf = no
mount proc = yes
mount sys = no
mount dev = minimal
mount devpts = yes
mount home = no
mount tmp = yes
mount hostfs = no
user bind control = yes
enable fusemount = no
enable overlay = yes
enable underlay = yes
mount slave = yes
memory fs type = tmpfs
systemd cgroups = no
sessiondir max size = {scratch_mib}
"""


class ApptainerLayout(msgspec.Struct, frozen=True, kw_only=True):
    """Input of `apptainer_argv`. Paths without `inside` are the host's."""

    program: str
    unshare: str
    configuration: str
    image: str
    runtime: str  # what becomes RUNTIME
    files: Mapping[str, str]  # path inside: the host's file
    network: bool
    payload: Sequence[str]
    python_dir: str | None = None
    mounts: Sequence[Mount] = ()
    writable: Mapping[str, str | None] = {}  # of the image: what is bound there; None: an empty place in memory
    holder_profile: str | None = None


def configuration(scratch_bytes: int) -> str:
    """All that can be written inside lies in one file system in memory: this size, and up to 2 MiB for Apptainer."""
    return CONFIGURATION.format(scratch_mib=1 - (-scratch_bytes >> 20))


def apptainer_argv(layout: ApptainerLayout) -> list[str]:
    """All namespaces apart, no capabilities, nothing of the host but what is listed."""
    in_memory = [path for path, source in layout.writable.items() if source is None]
    argv = [layout.unshare, *OUTER, layout.program, "--silent", "--nocolor", "--config", layout.configuration, "exec"]
    argv += ["--userns", "--containall", "--no-privs", "--no-init", "--no-home", "--no-mount", "bind-paths"]
    argv += ["--uts", "--hostname", "sandbox", "--pwd", "/", "--scratch", ",".join((*SCRATCH, *in_memory))]
    argv += [] if layout.network else ["--net", "--network", "none"]
    argv += ["--security", f"seccomp:{layout.holder_profile}"] if layout.holder_profile else []
    return [*argv, layout.image, *layout.payload]


def apptainer_environment(layout: ApptainerLayout) -> dict[str, str]:
    """Mounts: every user of the machine reads command lines, and the name of a sandbox's door is a secret.

    Raises `OSError` for one that would be read as several.
    """
    binds = [(source, path, True) for path, source in sorted(layout.writable.items()) if source is not None]
    binds += [(layout.runtime, RUNTIME, False)]
    binds += [(source, path, False) for path, source in layout.files.items()]
    binds += [(layout.python_dir, PYTHON_DIR, False)] if layout.python_dir else []
    binds += [(mount.source, mount.target, mount.writable) for mount in layout.mounts]
    lines = [_bind(source, target, writable=writable) for source, target, writable in binds]
    if split := next((each for each in lines if "\n" in each or "\r" in each), None):
        raise OSError(errno.EINVAL, f"a path of the sandbox has a line break: {split!r}")
    return {"APPTAINER_MOUNT": "\n".join(lines)}


def _bind(source: str, target: str, *, writable: bool) -> str:
    """One line of comma-separated values, quoted where a path needs it. Apptainer wants as many in each line."""
    text = io.StringIO()
    fields = ["type=bind", f"source={source}", f"destination={target}", "type=bind" if writable else "ro"]
    csv.writer(text, lineterminator="").writerow(fields)
    return text.getvalue()
