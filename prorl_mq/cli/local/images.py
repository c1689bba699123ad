"""`prorl-mq images`: lists, fetches and removes images of this node, in a process of the workers' package."""

import argparse
import asyncio
import os
from pathlib import Path

import msgspec

from prorl_mq.cli import tasks_file
from prorl_mq.cli.local import programs
from prorl_mq.cli.local.place import redis_of
from prorl_mq.errors import ConfigurationError

FAULTS = (ConfigurationError,)


async def run(given: argparse.Namespace) -> int:
    """The exit code is that of the program. A word that is a file of rows stands for the images of its tasks."""
    if given.json and given.action != "ls":
        raise ConfigurationError(f"--json is of `images ls`: leave it out of `images {given.action}`")
    files = [word for word in given.names if word.endswith((".jsonl", ".json"))]
    names = [word for word in given.names if word not in files]
    tasks = [
        line.group.task
        for file in files
        for line in tasks_file.read(Path(file), n=1, data_source=given.data_source)
    ]  # fmt: skip
    rows = [msgspec.json.encode({"data_source": each.data_source, "payload": each.payload}) for each in tasks]
    redis = redis_of(given)
    action = "rows" if given.json else given.action
    argv = [
        *programs.MODULE,
        "workers.images",
        action,
        *names,
        "--state-dir",
        str(given.state_dir),
    ]
    process = await asyncio.create_subprocess_exec(
        *argv, "--namespace", redis.namespace, stdin=asyncio.subprocess.PIPE,
        env={**os.environ, **programs.credentials(redis)},
    )  # fmt: skip
    await process.communicate(b"\n".join(rows))
    return process.returncode or 0
