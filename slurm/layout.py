"""The layout of a deployment: its files below the shared directory, and the names of its jobs."""

import hashlib
from pathlib import Path
from typing import Final

from prorl_mq.settings import Setting
from slurm.spec import Deployment

SHARED: Final = Setting("--shared", "the deployment's directory on shared storage", type=Path, required=True)


def job_name(deployment: Deployment, job: str) -> str:
    return f"{deployment.name}.{job}"


def logs(deployment: Deployment) -> str:
    return f"{deployment.shared}/logs"


def rendezvous(deployment: Deployment) -> str:
    """The directory with a file for each role that Redis knows, and one for trainers."""
    return f"{deployment.shared}/rendezvous"


def node_directory(name: str, shared: str) -> str:
    """The directory of a deployment on a node's disk. Two of one name must not meet there: each asks its own Redis
    who owns a sandbox, and destroys what nobody owns.
    """
    digest = hashlib.blake2b(shared.encode(), digest_size=4).hexdigest()
    return f"{name}-{digest}"


def role_file(directory: str | Path, role: str) -> Path:
    """Roles: worker, eval, ingress; trainer says where the API is."""
    return Path(directory) / f"{role}.json"
