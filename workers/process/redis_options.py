"""Where Redis is, for every program of this package: a rendezvous file, the environment, the command line.

The later one wins. Passwords never stand on a command line, which everybody on the machine can read.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path

from prorl_mq.store.connection import RedisSettings

HERE = "redis://127.0.0.1:6379/0"


def add_options(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    parser.add_argument("--redis", default=env.get("PRORL_REDIS"), help=f"redis://, rediss:// or unix:// ({HERE})")
    parser.add_argument(
        "--rendezvous", type=Path, default=env.get("PRORL_RENDEZVOUS"), help="file that says where Redis is"
    )
    parser.add_argument("--namespace", default=env.get("PRORL_NAMESPACE", "prorl"))
    parser.add_argument("--outage-ms", type=int, default=120_000, help="how long an unreachable Redis is waited for")


def redis_settings(given: argparse.Namespace, env: Mapping[str, str]) -> RedisSettings:
    """What `add_options` has read."""
    return RedisSettings(
        url=given.redis or ("" if given.rendezvous else HERE),
        rendezvous=given.rendezvous,
        namespace=given.namespace,
        username=env.get("PRORL_REDIS_USERNAME"),
        password=env.get("PRORL_REDIS_PASSWORD"),
        outage_ms=given.outage_ms,
    )
