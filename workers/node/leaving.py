"""`python -m workers.node.leaving`: after the last workers of a task, destroys the sandboxes that no job owns any more.

A lane's jobs go back to INIT only when its RUN workers are gone, and nobody would be left on the node to notice.
"""

import argparse
import asyncio
import os
import sys
from pathlib import Path

from msgspec.structs import replace

from prorl_mq.clock import monotonic
from prorl_mq.errors import ProrlError
from prorl_mq.settings import Setting, add
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import connect, located
from prorl_mq.store.store import Store
from prorl_mq.store.workers import living
from sandbox.lifetime import label
from sandbox.lifetime.owner import OwnerKind, parse
from workers.node.sweeping import Sweeping
from workers.redis_options import OUTAGE, SERVER, redis_settings
from workers.settings import NODE, STATE_DIR, default_node

LOOK_S = 0.5
OUTAGE_MS = 10_000  # the task ends soon, and with it this process
SETTINGS = (
    *SERVER,
    replace(OUTAGE, default=OUTAGE_MS),
    NODE,
    STATE_DIR,
    Setting("--within-s", "how long it waits for their jobs to go", type=float, default=15.0, unit="s"),
)


async def leave(store: Store, state_dir: Path, node: str, *, within_s: float) -> int:
    """Sandboxes of the node that are left: none, or those that other workers here look after, or Redis was away."""
    sweeping = Sweeping(store, state_dir, node)
    give_up = monotonic() + within_s
    while True:
        await sweeping.sweep()
        found = await asyncio.to_thread(label.labelled, state_dir)
        left = sum(made.node == node and _is_a_jobs(made.owner) for _, made in found)
        others = left and any(worker.node == node and worker.slots for worker in await living(store))
        if not left or others or monotonic() > give_up:
            return left
        await asyncio.sleep(LOOK_S)  # for the reaper to take a dead lane's jobs away


def _is_a_jobs(text: str) -> bool:
    """A pool's belong to the keeper of another task of this node."""
    owned = parse(text)
    return owned is not None and owned.kind is OwnerKind.JOB


async def run(given: argparse.Namespace) -> int:
    settings = redis_settings(given, os.environ)
    await located(settings)
    redis = connect(settings)
    name = f"leaving-{given.node}-{os.getpid()}"
    store = Store(redis, Keys(settings.namespace), name=name, outage_ms=settings.outage_ms)
    try:
        return await leave(store, given.state_dir, given.node, within_s=given.within_s)
    finally:
        await redis.aclose()


def main() -> None:
    """Says what is left, if anything is."""
    parser = argparse.ArgumentParser(prog="python -m workers.node.leaving", description=__doc__)
    add(parser, SETTINGS, os.environ)
    given = parser.parse_args()
    given.node = given.node or default_node()
    try:
        left = asyncio.run(run(given))
    except ProrlError as error:
        sys.exit(f"leaving: {error}; sandboxes may be left in {given.state_dir}")
    if left:
        print(f"leaving: {left} sandboxes stay in {given.state_dir} for other workers of {given.node}", flush=True)


if __name__ == "__main__":
    main()
