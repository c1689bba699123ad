"""Where a deployment's files lie below its shared directory, and what its jobs are called."""

from pathlib import Path

from slurm.spec import Deployment


def job_name(deployment: Deployment, job: str) -> str:
    return f"{deployment.name}.{job}"


def logs(deployment: Deployment) -> str:
    return f"{deployment.shared}/logs"


def rendezvous(deployment: Deployment) -> str:
    """The directory with a file for each role that Redis knows, and one for trainers."""
    return f"{deployment.shared}/rendezvous"


def role_file(directory: str | Path, role: str) -> Path:
    """Roles: worker, eval, ingress; trainer says where the API is."""
    return Path(directory) / f"{role}.json"
