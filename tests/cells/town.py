"""Cells of real API processes behind a real router."""

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import httpx
from msgspec.structs import replace

from prorl_mq.store.server.connection import RedisSettings
from tests.api.process import started
from tests.api.service import Worker, announce_source

NAMES = ("a", "b", "c")


class Town:
    """Some cells, by their names, with the addresses of their APIs."""

    def __init__(self, directory: Path, settings: RedisSettings) -> None:
        self.directory = directory
        self.settings = {name: replace(settings, namespace=f"cell-{name}") for name in NAMES}
        self.urls: dict[str, str] = {}
        self.processes: dict[str, Process] = {}

    @property
    def file(self) -> Path:
        path = self.directory / "cells.toml"
        path.write_text("[cells]\n" + "".join(f'{name} = "{url}"\n' for name, url in self.urls.items()))
        return path

    def worker(self, name: str) -> Worker:
        return Worker(self.settings[name])

    def stop(self, name: str) -> None:
        """The cell's API takes connections and answers none."""
        os.kill(self.processes[name].pid, 19)

    def go_on(self, name: str) -> None:
        os.kill(self.processes[name].pid, 18)

    async def kill(self, name: str) -> None:
        self.processes[name].kill()
        await self.processes[name].wait()

    async def holding(self, run: str) -> list[str]:
        """The cells that have the run."""
        async with httpx.AsyncClient(timeout=30) as client:
            return [
                name for name, url in self.urls.items() if (await client.get(f"{url}/v1/runs/{run}")).status_code == 200
            ]


@contextlib.asynccontextmanager
async def town(directory: Path, settings: RedisSettings, names: Sequence[str] = NAMES) -> AsyncIterator[Town]:
    made = Town(directory, settings)
    async with contextlib.AsyncExitStack() as stack:
        for name in names:
            await announce_source(made.settings[name])
        opened = [stack.enter_async_context(started(made.settings[name])) for name in names]
        for name, (process, url) in zip(names, [await each for each in opened], strict=True):
            made.processes[name], made.urls[name] = process, url
        try:
            yield made
        finally:
            for process in made.processes.values():
                if process.returncode is None:
                    os.kill(process.pid, 18)


@contextlib.asynccontextmanager
async def router(file: Path) -> AsyncIterator[httpx.AsyncClient]:
    """`prorl-mq router` on a free port."""
    argv = (sys.executable, "-c", "import sys; from prorl_mq.cli import main; sys.exit(main())", "router", str(file))
    process = await asyncio.create_subprocess_exec(*argv, "--port", "0", stdout=PIPE, stderr=PIPE)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            line = (await process.stdout.readline()).decode()
        address = line.partition(" are at ")[2].split()[0]
        async with httpx.AsyncClient(base_url=address, timeout=60) as client:
            yield client
    finally:
        if process.returncode is None:
            process.terminate()
        _, said = await process.communicate()
    assert process.returncode == 0, said.decode()
