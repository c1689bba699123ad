"""`prorl-mq dashboard`: rq-dashboard for a running service, until Ctrl-C or SIGTERM."""

import argparse
import asyncio
import contextlib
import os

from prorl_mq.cli.interruption import interruptible
from prorl_mq.cli.local import programs
from prorl_mq.cli.local.place import redis_of
from prorl_mq.cli.up import say
from prorl_mq.dashboard import running
from prorl_mq.dashboard.settings import DashboardSettings, dashboard_token, installed, mirror_of
from prorl_mq.errors import ConfigurationError
from prorl_mq.process.children import Child, Guard
from prorl_mq.process.ports import free_port, require_free

FAULTS = (ConfigurationError,)
GRACE_S = 10.0


async def run(given: argparse.Namespace) -> int:
    redis = redis_of(given)
    if given.rebuild:
        mirror = mirror_of(redis, given.database, os.environ)
        await running.project(DashboardSettings(role="project", redis=redis, mirror=mirror, rebuild=True))
        say("every record of rq-dashboard was rebuilt")
        return 0
    if not installed():
        raise ConfigurationError("rq-dashboard is not installed: pip install 'prorl-mq[dashboard]'")
    if given.port:
        require_free(given.port)
    port, shown = given.port or free_port(), dashboard_token()
    logs = given.state_dir.absolute() / "logs"
    pair = programs.dashboard(logs, redis, port=port, database=given.database, token=shown)
    async with contextlib.AsyncExitStack() as stack:
        guard = Guard(None)
        stack.push_async_callback(guard.aclose)
        children = [Child(program, say=say, guard=guard) for program in pair]

        def hurry() -> None:
            for child in children:
                child.kill()

        with interruptible(hurry), contextlib.suppress(asyncio.CancelledError):
            for child in children:
                stack.push_async_callback(child.stop, GRACE_S)
                await child.start()
            print(f"dashboard http://127.0.0.1:{port}/?token={shown}\nCtrl-C ends it", flush=True)
            async with asyncio.TaskGroup() as group:
                for child in children:
                    group.create_task(child.keep(), name=f"keep {child.program.name}")
    return 0
