"""The example client in JavaScript, by Node.js, on a real service: over HTTP, and over Redis alone."""

import asyncio
import json
import os
import shutil
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

import pytest

from prorl_mq.store.server.connection import RedisSettings
from tests.api.process import started
from tests.api.service import SOURCE, Worker, announce_source
from tests.sandbox.conftest import TOOLS_DIR
from tests.support.service import until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]
EXAMPLE = Path(__file__).parents[2] / "examples" / "nodejs"
PACKAGES = TOOLS_DIR / "nodejs"


@pytest.fixture
def client(tmp_path: Path) -> Path:
    """The example beside its packages."""
    if not (PACKAGES / ".complete").exists() and not os.environ.get("CI"):
        pytest.skip("no packages for Node.js: run `make nodejs`")
    shutil.copytree(EXAMPLE, tmp_path / "client")
    (tmp_path / "client" / "node_modules").symlink_to(PACKAGES / "node_modules")
    return tmp_path / "client"


def batch(tmp_path: Path, **more: Any) -> str:
    task = {"task_id": "t", "data_source": SOURCE, "payload": {"question": "?", "answer": "!"}}
    path = tmp_path / "batch.json"
    path.write_text(json.dumps({"batch_id": "b", "groups": [{"task": task, "n": 2}, {"task": task}], **more}))
    return str(path)


async def said(script: Path, *arguments: str, namespace: str = "") -> tuple[int, list[str], str]:
    """How it ended, and what it printed."""
    process = await asyncio.create_subprocess_exec(
        "node", str(script), *arguments, stdout=PIPE, stderr=PIPE, env={**os.environ, "PRORL_NAMESPACE": namespace}
    )
    try:
        out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    return process.returncode or 0, out.decode().splitlines(), err.decode()


@pytest.mark.parametrize("way", ["http", "redis"])
async def test_it_says_how_it_is_called(client: Path, way: str) -> None:
    code, out, err = await said(client / f"{way}.mjs", "redis://127.0.0.1:6379", "default:run")
    assert (code, out, err.startswith(f"usage: node {way}.mjs ")) == (2, [], True)


@pytest.mark.parametrize("way", ["http", "redis"])
async def test_it_gets_every_sample_with_its_tokens_and_acknowledges_it(
    settings: RedisSettings, client: Path, tmp_path: Path, way: str
) -> None:
    await announce_source(settings)
    async with (
        started(settings) as (_, url),
        Worker(settings) as worker,
        asyncio.timeout(200),
        asyncio.TaskGroup() as tasks,
    ):
        where = (url,) if way == "http" else (settings.url.removeprefix("unix://"), "default")
        script, arguments = client / f"{way}.mjs", (*where, "js", batch(tmp_path))
        running = tasks.create_task(said(script, *arguments, namespace=settings.namespace))
        for _ in range(3):
            await worker.complete(0.5)
        code, lines, errors = await running
        assert code == 0, errors
        told = sorted(
            (each["group"], each["reward"], each["trained"], each["known"]) for each in map(json.loads, lines)
        )
        assert told == [("b-0", 0.5, 1, 1), ("b-0", 0.5, 1, 1), ("b-1", 0.5, 1, 1)]

        async def forgotten() -> bool:
            keys = [key.decode() for key in await worker.store.read("KEYS", "*:js*")]
            left = [key for key in keys if ":blob:" in key or ":group:" in key]
            streams = [await worker.store.read("XLEN", key) for key in keys if ":results:" in key]
            return not left and streams in ([], [0])

        await until(forgotten)


@pytest.mark.parametrize("way", ["http", "redis"])
async def test_a_wrong_field_is_refused_by_name(
    settings: RedisSettings, client: Path, tmp_path: Path, way: str
) -> None:
    await announce_source(settings)
    async with started(settings) as (_, url), asyncio.timeout(100):
        where = (url,) if way == "http" else (settings.url.removeprefix("unix://"), "default")
        for field, nearest in (("max_turn", "max_turns"), ("temprature", "temperature")):  # each has its own answer
            wrong = batch(tmp_path, sampling={field: 1})
            code, lines, errors = await said(client / f"{way}.mjs", *where, "js", wrong, namespace=settings.namespace)
            assert (code, lines) == (1, [])
            assert f"unknown field '{field}'" in errors
            assert f"did you mean '{nearest}'?" in errors
