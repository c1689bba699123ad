"""The deployment's directory on a node's own disk: created below a place that others can write to, so it is checked."""

import os
import re
import stat
from pathlib import Path

from prorl_mq.errors import ConfigurationError

OURS = 3  # prorl-UID, the deployment, the node


def prepare(path: Path, uid: int) -> None:
    """Creates it. Raises `ConfigurationError` if another user owns it, or may write to it."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o755)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be created: {error.strerror}; set `scratch` to a directory") from None
    for place in (path, *path.parents[: OURS - 1]):
        about = place.lstat()
        if about.st_uid != uid or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or not stat.S_ISDIR(about.st_mode):
            raise ConfigurationError(
                f"{place} belongs to another user, or others can write to it: remove it, or set `scratch`"
            )


def private(path: Path, job: str, mounts: str) -> bool:
    """True for a directory of one job alone: its path names the job, as $SLURM_TMPDIR does, or it is mounted from such
    a place, as Slurm's job_container/tmpfs mounts /tmp. `mounts` is /proc/self/mountinfo.

    >>> tmpfs = "50 1 8:1 /containers/17/.17 /tmp rw - ext4 /dev/sda1 rw"
    >>> private(Path("/tmp/prorl-0/d/n"), "17", tmpfs), private(Path("/local/prorl-0/d/n"), "17", tmpfs)
    (True, False)
    >>> private(Path("/local/job_17/prorl-0/d/n"), "17", ""), private(Path("/local/17f/prorl-17/d/n"), "17", "")
    (True, False)
    """
    real = os.path.realpath(path.parents[OURS - 1])
    above = [line.split() for line in mounts.splitlines()]
    roots = {row[4]: row[3] for row in above if f"{real}/".startswith(f"{row[4].rstrip('/')}/")}
    root = roots[max(roots, key=len)] if roots else ""
    return any(job in re.split(r"[/._-]", place) for place in (real, root))
