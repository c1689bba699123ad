"""The supervisor on shared storage: the deployment that was submitted last, and the lock."""

import os
import socket
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import msgspec

from prorl_mq.errors import ConfigurationError
from slurm import node_state
from slurm.spec import Deployment
from slurm.supervisor.lock import WatchLock

LEASE_S: Final = 30.0
KILLED: Final = 1_000  # earlier tasks that stay noted as killed: Slurm forgets a task some minutes after its end


def directory(shared: str | Path) -> Path:
    return Path(shared) / "watch"


def keep(deployment: Deployment) -> None:
    """Writes the deployment for supervisors that are jobs: they follow what was submitted last. Beside it lies all that
    was ever submitted.
    """
    _write(deployment.shared, "submitted", whole(deployment))
    _write(deployment.shared, "deployment", deployment)


def _write(shared: str | Path, name: str, content: Any) -> None:
    place = node_state.private(directory(shared), os.getuid())
    new = place / f"{name}.new"
    new.write_bytes(msgspec.json.encode(content))
    new.replace(place / f"{name}.json")


def known(shared: str | Path) -> Deployment:
    """Raises `ConfigurationError` where nothing was submitted, or by a release whose file this one does not read."""
    file = directory(shared) / "deployment.json"
    try:
        return msgspec.json.decode(file.read_bytes(), type=Deployment)
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigurationError(f"{file} cannot be read: {error}; `prorl-slurm submit` writes it") from None


def killed(shared: str | Path) -> frozenset[str]:
    """Tasks that `cancel` has killed."""
    try:
        return frozenset(msgspec.json.decode((directory(shared) / "killed.json").read_bytes(), type=list[str]))
    except (OSError, msgspec.MsgspecError):
        return frozenset()


def note_killed(deployment: Deployment, ids: Collection[str]) -> None:
    """Adds tasks behind the newest earlier ones, also of arrays that are in the spec no longer and may come back."""
    before = sorted(killed(deployment.shared) - {*ids}, key=lambda task: int(task.partition("_")[0]))
    _write(deployment.shared, "killed", [*before[-KILLED:], *ids])


def whole(deployment: Deployment) -> Deployment:
    """With the jobs that were submitted once and stand in its file no more: they may still run."""
    try:
        kept = msgspec.json.decode((directory(deployment.shared) / "submitted.json").read_bytes(), type=Deployment)
    except (OSError, msgspec.MsgspecError):  # of an earlier release, or none
        try:
            kept = known(deployment.shared)
        except ConfigurationError:
            return deployment
    if kept.name != deployment.name:
        return deployment
    return msgspec.structs.replace(
        deployment,
        redis=deployment.redis or kept.redis,
        api=deployment.api or kept.api,
        watch=deployment.watch or kept.watch,
        backends={**kept.backends, **deployment.backends},
        arrays={**kept.arrays, **deployment.arrays},
    )


def guard(deployment: Deployment) -> Path:
    """The file that is held by whoever submits or cancels. It does not lie in `logs`, which people empty: one that was
    removed while it was held keeps nobody out.
    """
    return directory(deployment.shared) / "submit.lock"


def submitted(deployment: Deployment) -> bool:
    """Something of it has been submitted once."""
    return (directory(deployment.shared) / "deployment.json").exists()


def name(job: str) -> str:
    """The name of a supervisor: its job, its host and its process."""
    return f"{f'job {job} on ' if job else ''}{socket.gethostname()}:{os.getpid()}"


def lock(deployment: Deployment, job: str = "") -> WatchLock:
    """The lock of one supervisor, as this process."""
    return WatchLock(
        node_state.private(directory(deployment.shared), os.getuid()),
        guard(deployment),
        holder=name(job),
        job=job,
        stale_s=LEASE_S + deployment.scale.every_s,
    )
