"""Address of Redis for every program of this package: a rendezvous file, the environment, the command line.

The later one wins. Passwords never stand on a command line, which everybody on the machine can read.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path

import msgspec

from prorl_mq.errors import ConfigurationError
from prorl_mq.servers import fault
from prorl_mq.settings import NAMESPACE, REDIS, RENDEZVOUS, Setting
from prorl_mq.store.payloads.limits import UNCOMMITTED_TTL_MS
from prorl_mq.store.server.connection import RedisSettings

HERE = "redis://127.0.0.1:6379/0"

SERVER = (
    msgspec.structs.replace(REDIS, help=f"{REDIS.help}; without --rendezvous {HERE}"),
    msgspec.structs.replace(RENDEZVOUS, type=Path),
    NAMESPACE,
)
OUTAGE = Setting("--outage-ms", "how long an unreachable Redis is waited for", type=int, default=120_000, unit="ms")
REDIS_SETTINGS = (*SERVER, OUTAGE)


def redis_settings(given: argparse.Namespace, env: Mapping[str, str]) -> RedisSettings:
    """The settings that the command line gives. Raises `ConfigurationError`."""
    if given.redis and (wrong := fault(given.redis)):
        raise ConfigurationError(f"--redis {wrong}")
    if not 0 <= given.outage_ms < UNCOMMITTED_TTL_MS:
        raise ConfigurationError(
            f"--outage-ms is {given.outage_ms}, and less than an hour is needed ({UNCOMMITTED_TTL_MS}): a worker that "
            "waits longer may commit a payload that has been collected meanwhile"
        )
    return RedisSettings(
        url=given.redis or ("" if given.rendezvous else HERE),
        rendezvous=given.rendezvous,
        namespace=given.namespace,
        username=env.get("PRORL_REDIS_USERNAME"),
        password=env.get("PRORL_REDIS_PASSWORD"),
        outage_ms=given.outage_ms,
        kept=True,
    )
