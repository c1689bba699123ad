"""The command lines of the processes that make up a service."""

import ipaddress
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from prorl_mq.cli.local.settings import ServiceSettings
from prorl_mq.process.children import Program
from prorl_mq.process.crews.division import divided
from prorl_mq.schema.messages import Stage
from prorl_mq.settings import REDIS
from prorl_mq.shipped import shipped
from prorl_mq.store.server.connection import RedisSettings

# Where a service is started there may be a folder of the name of `api`: -P keeps Python from finding that first.
MODULE = (sys.executable, "-P", "-m")


def logs(settings: ServiceSettings) -> Path:
    return settings.state_dir / "logs"


def api(settings: ServiceSettings, redis: RedisSettings, port: int) -> Program:
    """The API, where `--host` says."""
    served = _api(settings, redis, port)
    return msgspec.structs.replace(served, argv=[*served.argv, "--host", settings.host])


def _api(settings: ServiceSettings, redis: RedisSettings, port: int) -> Program:
    argv = [*MODULE, "api", "--namespace", redis.namespace, "--port", str(port)]
    argv += ["--tokens", str(settings.tokens)] if settings.tokens else ["--state-dir", str(settings.state_dir)]
    argv += ["--open"] if settings.open else []
    mode = {"PRORL_DURABILITY": "replicated"} if settings.replicas else {}
    shown = {"PRORL_TOKENIZER": str(settings.tokenizer)} if settings.tokenizer else {}  # tokens as text on the page
    env = {**credentials(redis), **mode, **shown}
    return Program(name="api", argv=argv, log=logs(settings) / "api.log", env=env)


def urls(host: str, port: int) -> tuple[str, str]:
    """The API's address from this machine, and from others where it listens for them."""
    try:
        wild = ipaddress.ip_address(host).is_unspecified
    except ValueError:  # a name
        wild = False
    shown = f"[{host}]" if ":" in host else host
    return f"http://{'127.0.0.1' if wild else shown}:{port}", f"http://{socket.gethostname() if wild else shown}:{port}"


def compat(settings: ServiceSettings, redis: RedisSettings, port: int) -> Program:
    """The routes of ProRL Agent's first release, on loopback."""
    served = _api(settings, redis, port)
    return msgspec.structs.replace(
        served, name="compat", argv=[*served.argv, "--compat", "prorl"], log=logs(settings) / "compat.log"
    )


def workers(settings: ServiceSettings, redis: RedisSettings) -> Iterator[Program]:
    """One program for each worker process. RUN workers of many slots are several."""
    for stage, count in settings.processes.items():
        slots = [each for each, _ in divided(settings.slots)] if stage is Stage.RUN else [settings.slots]
        argv = [*MODULE, "workers", "--stage", stage.value]
        argv += ["--namespace", redis.namespace, "--sandbox", settings.sandbox]
        argv += ["--state-dir", str(settings.state_dir), "--grace-ms", str(int(settings.grace_s * 1000))]
        if settings.tokenizer is not None:
            argv += ["--tokenizer", str(settings.tokenizer)]
        for number, share in enumerate(slots * count, 1):
            name = f"{stage.value}-{number}"
            env = {**installed(settings.state_dir), **settings.environment, **credentials(redis)}
            each = [*argv, "--slots", str(share)]
            yield Program(name=name, argv=each, log=logs(settings) / f"{name}.log", env=env)


def installed(state_dir: Path, given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables for what `make swe-images` and `make agents` have installed, unless the environment says other."""
    places = {"PRORL_SWE_IMAGES": state_dir / "images" / "swe" / "images.json", "PRORL_AGENTS": state_dir / "agents"}
    return {name: str(place) for name, place in places.items() if place.exists() and not given.get(name)}


def keeper(settings: ServiceSettings, redis: RedisSettings) -> Program | None:
    """None where there are no sandboxes to keep."""
    if settings.sandbox == "none":
        return None
    argv = [*MODULE, "workers.node.keeper", "--namespace", redis.namespace]
    argv += ["--sandbox", settings.sandbox, "--state-dir", str(settings.state_dir)]
    return Program(name="keeper", argv=argv, log=logs(settings) / "keeper.log", env=credentials(redis))


def dashboard(logs: Path, redis: RedisSettings, *, port: int, database: int | str, token: str) -> list[Program]:
    """The projector, and the page on `port`."""
    argv = [*MODULE, "prorl_mq.dashboard", "--namespace", redis.namespace]
    argv += ["--database", str(database)]
    secret = {**credentials(redis), "PRORL_DASHBOARD_TOKEN": token}
    return [
        Program(name="projector", argv=[*argv, "project"], log=logs / "projector.log", env=credentials(redis)),
        Program(name="dashboard", argv=[*argv, "--port", str(port), "serve"], log=logs / "dashboard.log", env=secret),
    ]


def vllm(settings: ServiceSettings, model: Path, port: int) -> Program:
    """SIGTERM on the owner's death: vLLM ends its engine process only when asked to end."""
    argv = ["bash", str(shipped("ops/vllm-serve.sh")), str(model), str(port)]
    return Program(name="vllm", argv=argv, log=logs(settings) / "vllm.log", death_signal=signal.SIGTERM)


def choose(settings: ServiceSettings) -> list[str]:
    """Prints the kind of sandbox that works here, then why."""
    return [*MODULE, "sandbox", "choose", "--state-dir", str(settings.state_dir)]


def sweep(settings: ServiceSettings) -> list[str] | None:
    """Destroys sandboxes that an earlier service left; None where there can be none."""
    left = settings.state_dir / "sandboxes"
    if settings.sandbox == "none" or not left.is_dir() or not any(left.iterdir()):
        return None
    return [*MODULE, "sandbox", "sweep", "--state-dir", str(settings.state_dir)]


def credentials(redis: RedisSettings) -> dict[str, str]:
    """Redis for children: never on a command line, which every user of the machine can read. A URL may hold a password
    or two.
    """
    env = {REDIS.variable: redis.url} if REDIS.variable else {}
    if redis.username:
        env["PRORL_REDIS_USERNAME"] = redis.username
    if redis.password:
        env["PRORL_REDIS_PASSWORD"] = redis.password
    return env
