"""DAPO batches on the command line: submitted to their target, and shown while they run."""

import asyncio
import json
from pathlib import Path

import pytest

from prorl_mq.cli import submit
from prorl_mq.cli.arguments import parse
from prorl_mq.cli.overview import overview
from prorl_mq.schema.dapo import Dapo
from prorl_mq.store import gauges
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import RedisSettings, connect
from tests.api.process import started
from tests.api.service import SOURCE, Worker, announce_source
from tests.support.sampler import Sampler, prompts

pytestmark = pytest.mark.anyio


async def test_a_batch_is_filled_and_its_report_told_again_to_a_repeat(
    settings: RedisSettings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await announce_source(settings)
    tasks, out = tmp_path / "tasks.jsonl", tmp_path / "out.jsonl"
    lines = [{"task_id": f"t{i}", "data_source": SOURCE, "payload": {"question": "?"}} for i in range(2)]
    tasks.write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ["submit", f"{tasks}", "--out", f"{out}", "--n", "2", "--dapo", "target_groups=1", "surplus=cancel"]
    async with started(settings) as (_, url), Worker(settings) as worker:
        given = parse([*words, "--url", url])
        running = asyncio.create_task(submit.run(given))
        for reward in (0.0, 1.0):
            await worker.complete(reward)
        assert await running == 0
        said = capsys.readouterr().out
        assert await submit.run(given) == 0
    assert "1 of 1 groups accepted (target), 0 filtered, 0 failed, 1 not needed, 0 carried over" in said
    assert capsys.readouterr().out == said
    verdicts = {json.loads(line)["group_id"]: json.loads(line)["verdict"] for line in out.read_text().splitlines()}
    assert sorted(verdicts.values()) == ["accepted", "cancelled"]


async def test_status_shows_how_far_a_batch_is(settings: RedisSettings, keys: Keys) -> None:
    redis = connect(settings)
    sampler = Sampler(redis, keys)
    await sampler.prepare()
    await sampler.submit("b", prompts(*(f"g{i}" for i in range(5))), Dapo(target_groups=2, oversample=1.0))
    await sampler.calm()
    store = sampler.queue.store
    said = "\n\n".join(await overview(store, await gauges.read(store))).splitlines()
    await redis.aclose()
    row = next(line for line in said if line.startswith("r:b"))
    assert row.split() == ["r:b", "open", "0", "2", "4", "1", "0.5"]
