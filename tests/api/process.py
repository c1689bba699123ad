"""The ingress as a process of its own, as an operator starts it."""

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence

from prorl_mq.store.server.connection import RedisSettings


@contextlib.asynccontextmanager
async def started(settings: RedisSettings, *flags: str, by: Sequence[str] = ()) -> AsyncIterator[tuple[Process, str]]:
    """`prorl-api` on a free port, with the address that it prints. `by` is a command that starts another one."""
    flags = flags or ("--port", "0")
    entry = () if {"--tokens", "--state-dir"} & set(flags) else ("--open",)
    process = await spawn("--redis", settings.url, "--namespace", settings.namespace, *flags, *entry, by=by)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            line = (await process.stdout.readline()).decode().strip()
        assert line.startswith("listening on "), line
        yield process, line.removeprefix("listening on ")
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


async def spawn(*flags: str, env: Sequence[tuple[str, str]] = (), by: Sequence[str] = ()) -> Process:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PRORL_")}
    command = (*by, sys.executable, "-m", "api", *flags)
    return await asyncio.create_subprocess_exec(*command, env=plain | dict(env), stdout=PIPE, stderr=PIPE)
