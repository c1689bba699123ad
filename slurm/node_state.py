"""Directories of the deployment that lie where others may write: on a node's own disk, and in a group's shared one."""

import contextlib
import fcntl
import os
import re
import shutil
import stat
import time
from pathlib import Path

from prorl_mq.errors import ConfigurationError

OURS = 3  # prorl-UID, the deployment, the node
YOUNG_S = 60.0  # of a directory whose maker may not have locked it yet


def private(path: Path, uid: int) -> Path:
    """A directory for its owner alone, created where it is missing. Raises `ConfigurationError` for another user's: who
    may write where it lies can put one of his own in its place, with an authority or an address of his.

    Of root's only the mode counts: a file server may show another owner.
    """
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    about = path.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_mode & 0o077 or (uid and about.st_uid != uid):
        raise ConfigurationError(
            f"{path} belongs to another user, or is open to others: whoever made it can read the secrets of the "
            "deployment, or stand in for its Redis. Look at what it holds, then remove it, or chmod 700 it"
        )
    return path


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


def locked(path: Path) -> int | None:
    """A lock of a directory, which goes with this process; None where another one holds it. To be closed."""
    held = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        return None
    return held


def tidy(path: Path, pattern: str) -> None:
    """Removes directories whose process was killed: nobody holds their lock, and none has just been made."""
    for left in path.glob(pattern):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > YOUNG_S and (held := locked(left)) is not None:
                shutil.rmtree(left, ignore_errors=True)
                os.close(held)


def of_one_job(path: Path, job: str, mounts: str) -> bool:
    """True for a directory of one job alone: its path names the job, as $SLURM_TMPDIR does, or it is mounted from such
    a place, as Slurm's job_container/tmpfs mounts /tmp. `mounts` is /proc/self/mountinfo.

    >>> tmpfs = "50 1 8:1 /containers/17/.17 /tmp rw - ext4 /dev/sda1 rw"
    >>> of_one_job(Path("/tmp/prorl-0/d/n"), "17", tmpfs), of_one_job(Path("/local/prorl-0/d/n"), "17", tmpfs)
    (True, False)
    >>> of_one_job(Path("/local/job_17/prorl-0/d/n"), "17", ""), of_one_job(Path("/local/17f/prorl-17/d/n"), "17", "")
    (True, False)
    """
    real = os.path.realpath(path.parents[OURS - 1])
    above = [line.split() for line in mounts.splitlines()]
    roots = {row[4]: row[3] for row in above if f"{real}/".startswith(f"{row[4].rstrip('/')}/")}
    root = roots[max(roots, key=len)] if roots else ""
    return any(job in re.split(r"[/._-]", place) for place in (real, root))
