"""Settings of the projector and the page: a command line, and secrets from the environment."""

import argparse
import importlib.util
import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from prorl_mq.dashboard.mirror import settings_for
from prorl_mq.errors import ConfigurationError
from prorl_mq.servers import DATABASE
from prorl_mq.settings import NAMESPACE, REDIS, Setting, add
from prorl_mq.store.server.connection import RedisSettings

TOKEN: Final = "PRORL_DASHBOARD_TOKEN"  # noqa: S105 - the name of a variable
SETTINGS: Final = (
    Setting("role", "keep RQ's records up to date, or serve the page", choices=("project", "serve")),
    replace(REDIS, required=True),
    replace(NAMESPACE, variable=None),
    DATABASE,
    Setting("--rebuild", "write every record again, and end", alone=True),
    Setting("--port", "port of the page on loopback, 0 takes a free one", type=int, default=0),
)


class DashboardSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`role` is project or serve. `redis` is the queue's, `mirror` where RQ's records are."""

    role: str
    redis: RedisSettings
    mirror: RedisSettings
    rebuild: bool = False
    port: int = 0
    token: str = ""


def settings_from(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> DashboardSettings:
    """Raises `ConfigurationError`."""
    parser = argparse.ArgumentParser(prog="python -m prorl_mq.dashboard", description=__doc__)
    add(parser, SETTINGS, environ)
    given = parser.parse_args(argv)
    token = environ.get(TOKEN, "")
    if given.role == "serve" and not token:
        raise ConfigurationError(f"the page is never served without a token: set {TOKEN}")
    redis = RedisSettings(
        url=given.redis,
        namespace=given.namespace,
        username=environ.get("PRORL_REDIS_USERNAME"),
        password=environ.get("PRORL_REDIS_PASSWORD"),
    )
    return DashboardSettings(
        role=given.role,
        redis=redis,
        mirror=mirror_of(redis, given.database, environ),
        rebuild=given.rebuild,
        port=given.port,
        token=token,
    )


def mirror_of(redis: RedisSettings, database: int | str, environ: Mapping[str, str]) -> RedisSettings:
    """RQ's records lie on the queue's server, or another, and may have a user of their own. Raises
    `ConfigurationError`.
    """
    user, password = environ.get("PRORL_MIRROR_USERNAME"), environ.get("PRORL_MIRROR_PASSWORD")
    return settings_for(redis, database, user, password)


def installed() -> bool:
    """True if the extra `dashboard` is installed."""
    return importlib.util.find_spec("rq_dashboard") is not None


def dashboard_token() -> str:
    """The token that the page asks for: chosen by the operator, or new at each start."""
    return os.environ.get(TOKEN) or secrets.token_urlsafe(24)
