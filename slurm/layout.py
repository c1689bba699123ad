"""The layout of a deployment: its files below the shared directory, and the names of its jobs."""

import hashlib
from pathlib import Path
from typing import Final

from prorl_mq.settings import Setting
from slurm.spec import Deployment

SHARED: Final = Setting("--shared", "the deployment's directory on shared storage", type=Path, required=True)


def job_name(deployment: Deployment, job: str) -> str:
    """Two deployments of one name are told apart by their directories: neither sees or ends the other's jobs."""
    return f"{deployment.name}.{job}.{_digest(deployment.shared)}"


def job_names(deployment: Deployment, job: str) -> tuple[str, str]:
    """The name, and that which a release up to 0.1.0 gave."""
    return job_name(deployment, job), f"{deployment.name}.{job}"


def logs(deployment: Deployment) -> str:
    return f"{deployment.shared}/logs"


def rendezvous(deployment: Deployment) -> str:
    """The directory with a file for each role that Redis knows, and one for trainers."""
    return f"{deployment.shared}/rendezvous"


def node_directory(name: str, shared: str) -> str:
    """The directory of a deployment on a node's disk. Two of one name must not meet there: each asks its own Redis
    who owns a sandbox, and destroys what nobody owns.
    """
    return f"{name}-{_digest(shared)}"


def _digest(shared: str) -> str:
    return hashlib.blake2b(shared.encode(), digest_size=4).hexdigest()


def role_file(directory: str | Path, role: str) -> Path:
    """Roles: worker, eval, ingress; trainer says where the API is."""
    return Path(directory) / f"{role}.json"
