"""The running part of a deployment: its directory, its Redis, its jobs in Slurm."""

import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

from msgspec.structs import replace

from prorl_mq.errors import ConfigurationError
from prorl_mq.schema import rendezvous
from prorl_mq.schema.rendezvous import Place
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.payloads.place import DIRECTORY as PAYLOADS
from prorl_mq.store.payloads.place import payloads_of
from prorl_mq.store.server.connection import RedisSettings, connect
from prorl_mq.store.store import Store
from slurm import commands
from slurm.layout import job_names, logs, role_file
from slurm.layout import rendezvous as rendezvous_directory
from slurm.script import scripts
from slurm.spec import Deployment
from slurm.supervisor import places
from slurm.supervisor.lock import exclusive
from slurm.tasks import SlurmTask

FOREIGN_ROLES = ("worker", "eval", "ingress", "viewer")


def prepare(deployment: Deployment) -> None:
    """Makes what tasks expect to be there: Slurm starts none whose log has no directory."""
    try:
        Path(logs(deployment)).mkdir(parents=True, exist_ok=True)
        directory = Path(rendezvous_directory(deployment))
        if not directory.exists():  # one of an earlier release may still run workers that know no payloads in files
            directory.mkdir(parents=True, mode=0o700)
            (directory / PAYLOADS).mkdir(mode=0o700)
        places.keep(deployment)
    except OSError as error:
        raise ConfigurationError(f"{error.filename} cannot be created: {error.strerror}; set `shared`") from None
    redis = deployment.redis
    if redis is not None and redis.url is not None:
        _publish_foreign(directory, redis.url)


@contextlib.asynccontextmanager
async def submitting(deployment: Deployment) -> AsyncIterator[None]:
    """Two that submit one deployment at a time do so one after the other, so that the second sees the first's jobs."""
    async with exclusive(places.guard(deployment)):
        yield


def _publish_foreign(directory: Path, url: str) -> None:
    """For a Redis that is run elsewhere: the submitter's credentials, in a file for each role, if none is there yet."""
    user, password = os.environ.get("PRORL_REDIS_USERNAME"), os.environ.get("PRORL_REDIS_PASSWORD")
    for role in FOREIGN_ROLES:
        path = role_file(directory, role)
        if not path.exists() or rendezvous.read(path).url != url:
            rendezvous.publish(path, Place(url=url, username=user, secret=password))


async def tasks(deployment: Deployment) -> list[SlurmTask]:
    """Its tasks in Slurm, one that waits, runs or has ended. Of those that `cancel` has killed Slurm calls some failed,
    and an array whose tasks fail is asked for no more.
    """
    names = (name for script in scripts(deployment) for name in job_names(deployment, script.name))
    killed = places.killed(deployment.shared)
    return [
        replace(task, state="CANCELLED") if task.failed and task.id in killed else task
        for task in await commands.tasks(names)
    ]


@contextlib.asynccontextmanager
async def store_of(deployment: Deployment, role: str, *, name: str, outage_ms: int = 5_000) -> AsyncIterator[Store]:
    """The verbs, under a role. Raises `ConfigurationError` while no Redis has been published."""
    file = role_file(rendezvous_directory(deployment), role)
    settings = RedisSettings(rendezvous=file, namespace=deployment.namespace, outage_ms=outage_ms)
    rendezvous.known(file)
    redis = connect(settings)
    try:
        payloads = payloads_of(settings)
        yield Store(redis, Keys(deployment.namespace), name=name, outage_ms=outage_ms, payloads=payloads)
    finally:
        await redis.aclose()
