"""`prorl-mq job` and `cancel`: small answers about the state of the service."""

import argparse
import contextlib
import os
from collections.abc import AsyncIterator, Mapping

import msgspec

from prorl_mq.cli import job_text
from prorl_mq.cli.local.place import redis_of
from prorl_mq.client import AsyncClient
from prorl_mq.errors import ConfigurationError
from prorl_mq.process.tables import table
from prorl_mq.schema.status import RunStatus
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import connect
from prorl_mq.store.store import Store

FAULTS = (ConfigurationError,)


async def run(given: argparse.Namespace) -> int:
    await {"job": _job, "cancel": _cancel}[given.command](given)
    return 0


def run_table(found: Mapping[str, RunStatus]) -> str:
    """Runs under the names that the reader knows them by."""
    head = ("run", "weight", "backlog", "eval", "in flight", "un-acked", "settings", "why it waits")
    rows = [
        (name, run.settings.weight, run.backlog, run.backlog_eval, run.in_flight, run.unacked_groups,
         settings_text(run.settings), run.why)
        for name, run in found.items()
    ]  # fmt: skip
    return table(head, rows) if rows else "no runs"


def settings_text(settings: msgspec.Struct) -> str:
    """The settings that differ from the default, beside the weight."""
    given = {name: value for name, value in msgspec.to_builtins(settings).items() if name != "weight"}
    return ", ".join(f"{name} {value}" for name, value in given.items()) or "-"


async def _job(given: argparse.Namespace) -> None:
    async with AsyncClient(given.url, token=os.environ.get("PRORL_TOKEN"), patience_s=5) as client:
        if given.timeline:
            print(job_text.timeline(await client.timeline(given.id)))
        else:
            print(job_text.status(await client.job(given.id)))


async def _cancel(given: argparse.Namespace) -> None:
    async with AsyncClient(given.url, token=os.environ.get("PRORL_TOKEN"), patience_s=30) as client:
        answer = await client.cancel(given.kind, given.id)
    running = f"; workers are stopping {answer.jobs} jobs" if answer.jobs else ""
    print(f"{given.kind} {answer.id}: {answer.state}{running}")


@contextlib.asynccontextmanager
async def service_redis(given: argparse.Namespace) -> AsyncIterator[Store]:
    """The verbs, straight on the Redis that was named, or on that of the service in the state directory."""
    settings = redis_of(given)
    redis = connect(settings)
    try:
        yield Store(redis, Keys(settings.namespace), name="prorl-mq", outage_ms=2_000)
    finally:
        await redis.aclose()
