"""`prorl-mq up`: a service on this machine, kept running until Ctrl-C or SIGTERM."""

import argparse
import asyncio
import os
import sys

from prorl_mq import local_token
from prorl_mq.cli.interruption import interruptible
from prorl_mq.cli.local import programs
from prorl_mq.cli.local.service import LocalService
from prorl_mq.cli.local.settings import COMPAT_PORT, ServiceSettings, redis_settings
from prorl_mq.clock import monotonic
from prorl_mq.dashboard.settings import installed
from prorl_mq.errors import ConfigurationError
from prorl_mq.process import tokenizers
from prorl_mq.schema.messages import Stage
from prorl_mq.servers import hidden

FAULTS = (ConfigurationError,)


async def run(given: argparse.Namespace) -> int:
    settings = settings_of(given)
    began = monotonic()
    service = LocalService(settings, say)
    with interruptible(service.kill):
        try:
            await service.start()
            print(ready(service, monotonic() - began), flush=True)
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            say("draining: running jobs may finish; press Ctrl-C again to stop them now")
        finally:
            await service.aclose()
    return 0


def settings_of(given: argparse.Namespace) -> ServiceSettings:
    """Raises `ConfigurationError`."""
    for option, path in (("--tokenizer", given.tokenizer), ("--local-backend", given.local_backend)):
        if path is not None:
            tokenizers.check_directory(path, option)
    if given.redis and given.replicas:
        raise ConfigurationError("--replicas is for a server that is started: leave out --redis, or give it alone")
    if given.open and given.tokens:
        raise ConfigurationError("--open asks for no token, and --tokens for one: leave one of them out")
    if given.tokens and (given.backend or given.local_backend) and not os.environ.get("PRORL_TOKEN"):
        raise ConfigurationError(
            "with --tokens, a backend belongs to a tenant: put the token of that tenant into PRORL_TOKEN"
        )
    tokenizer = given.tokenizer or given.local_backend
    return ServiceSettings(
        state_dir=given.state_dir.absolute(),
        processes={Stage.INIT: given.init, Stage.RUN: given.run, Stage.EVAL: given.eval},
        redis=redis_settings(given.redis, given.namespace) if given.redis else None,
        redis_kind=given.redis_server,
        replicas=given.replicas,
        namespace=given.namespace,
        slots=given.slots,
        host=given.host,
        port=given.port,
        tokens=given.tokens.absolute() if given.tokens else None,
        open=given.open,
        compat_port=given.compat_port if given.compat_port is not None else given.port and COMPAT_PORT,
        sandbox=given.sandbox,
        tokenizer=tokenizer.absolute() if tokenizer else None,
        backends=tuple(given.backend),
        local_backend=given.local_backend.absolute() if given.local_backend else None,
        dashboard=not given.no_dashboard and installed(),
        grace_s=given.grace,
    )


def ready(service: LocalService, seconds: float) -> str:
    """Summary of a service that has come up, for its user."""
    settings = service.settings
    workers = ", ".join(f"{stage.value} {count}" for stage, count in settings.processes.items())
    rows = {
        **addresses(service),
        "ProRL v1": compat_base(service),
        "Redis": hidden(service.redis.url) if service.redis else "",
        "workers": f"{workers}; {settings.slots} jobs at a time in each",
        **({} if settings.tokenizer else {"tokenizer": tokenizers.NONE}),
        "backends": ", ".join(service.backends) or "none; add one: POST /v1/pools/policy/backends",
        "logs": str(programs.logs(settings)),
    }
    lines = [f"ready after {seconds:.1f} s", *(f"  {name:<9} {text}" for name, text in rows.items())]
    return "\n".join([*lines, "Ctrl-C drains and ends"])


def compat_base(service: LocalService) -> str:
    """The address for a client of the first release: it sends no header, so a token is in the path."""
    if service.settings.open:
        return service.compat_url
    return f"{service.compat_url}/token/{service.token or 'TOKEN, of a tenant'}"


def addresses(service: LocalService) -> dict[str, str]:
    """Addresses for a browser and for a Prometheus."""
    return {
        "API": f"{service.url}  (description: {service.url}/docs)",
        **({} if service.reached == service.url else {"elsewhere": service.reached}),
        "web page": f"{service.url}/ui{f'/#token={service.token}' if service.token else ''}",
        **token_row(service),
        "dashboard": service.dashboard
        or "not started: it needs pip install 'prorl-mq[dashboard]', and no --no-dashboard",
        "metrics": f"{service.url}/metrics  (of workers: {service.settings.state_dir / 'metrics'})",
    }


def token_row(service: LocalService) -> dict[str, str]:
    """The token, or that none is asked for; nothing where the operator gave tokens."""
    if service.settings.tokens:
        return {}
    if service.settings.open:
        return {"token": "none (--open): every user of this machine reads and changes everything"}
    file = service.settings.state_dir / local_token.FILE
    found = "found by commands and clients that run where .state is that directory, or with PRORL_STATE set to it"
    return {"token": f"{file}  ({found})"}


def say(text: str) -> None:
    """A remark on standard error."""
    print(f"prorl-mq: {text}", file=sys.stderr, flush=True)
