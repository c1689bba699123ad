"""The deployment's directory on a node's own disk: created below a place that others can write to, so it is checked."""

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
