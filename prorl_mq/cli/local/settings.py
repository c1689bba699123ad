"""The settings of `prorl-mq up`."""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from prorl_mq.errors import ConfigurationError
from prorl_mq.schema.messages import Stage
from prorl_mq.servers import fault
from prorl_mq.store.server.connection import RedisSettings

POOL = "policy"
COMPAT_PORT = 8006  # of ProRL Agent's first release
AUTO = "auto"  # the kind of sandbox that works here


class ServiceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One machine's service. Without `redis` a server of its own is started, `redis_kind` says which."""

    state_dir: Path  # absolute
    processes: Mapping[Stage, int]
    redis: RedisSettings | None = None
    redis_kind: str | None = None  # installed, embedded; None: whichever is there
    replicas: int = 0  # of the own server, a chain with Sentinels; 0: a server alone
    namespace: str = "prorl"
    slots: int = 8
    host: str = "127.0.0.1"  # that the API listens on
    port: int = 8080  # 0: a free one
    tokens: Path | None = None  # file of the tenants' bearer tokens; None: one is made for `default`
    open: bool = False  # none is made, and everybody on this machine is `default`
    compat_port: int | None = None  # of ProRL Agent's routes, 0: a free one; None: they are not served
    sandbox: str = AUTO
    tokenizer: Path | None = None
    backends: tuple[str, ...] = ()
    local_backend: Path | None = None  # a model that a vLLM of this machine serves
    answers: Path | None = None  # where every answer of a backend is kept; None: nowhere
    dashboard: bool = False  # start rq-dashboard beside it
    environment: Mapping[str, str] = {}  # of the workers, on top of ours
    fresh: bool = False  # begin without what an earlier service stored
    grace_s: float = 30.0
    start_s: float = 120.0  # how long API and workers may take until they are seen
    # vLLM imports itself in three processes, one after the other: minutes on a busy machine. Its death is seen at once.
    backend_start_s: float = 900.0


def redis_settings(url: str, namespace: str, *, password: str | None = None) -> RedisSettings:
    """A server that is already running; credentials come from the environment where they are not given."""
    if wrong := fault(url):
        raise ConfigurationError(f"--redis {wrong}")
    return RedisSettings(
        url=url,
        namespace=namespace,
        username=os.environ.get("PRORL_REDIS_USERNAME"),
        password=password or os.environ.get("PRORL_REDIS_PASSWORD"),
    )
