"""`prorl-mq run`, `tenant` and `status`, on a real ingress and a real Redis."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import pytest

from prorl_mq.cli import main
from prorl_mq.store.server.connection import RedisSettings
from tests.api.process import started
from tests.api.service import announce_source, batch

pytestmark = pytest.mark.anyio
Say = Callable[..., Awaitable[tuple[int, str, str]]]


@pytest.fixture
def say(settings: RedisSettings, capsys: pytest.CaptureFixture[str]) -> Say:
    """Runs one command line; its code and what it said."""

    async def run(*words: object) -> tuple[int, str, str]:
        code = await asyncio.to_thread(main, [*map(str, words)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture
async def url(settings: RedisSettings) -> AsyncIterator[str]:
    await announce_source(settings)
    async with started(settings) as (_, url):
        yield url


async def test_a_runs_settings_are_changed_one_at_a_time_and_shown_and_wrong_ones_explained(say: Say, url: str) -> None:
    assert (await say("run", "--url", url))[:2] == (0, "no runs\n")
    await say("run", "grpo", "--weight", 2, "--max-jobs", 64, "--url", url)
    code, out, _ = await say("run", "grpo", "--max-unacked-groups", 16, "--url", url)
    assert code == 0
    assert out.splitlines()[1].split()[:2] == ["grpo", "2.0"]
    assert "max_jobs 64, max_unacked_groups 16" in out
    code, out, _ = await say("run", "grpo", "--max-jobs", "none", "--url", url)
    assert "max_jobs" not in out
    assert (await say("run", "--url", url))[1] == out
    code, _, err = await say("run", "grpo", "--weight", 0, "--url", url)
    assert (code, "weight" in err, ">= 0.01" in err) == (2, True, True)
    code, _, err = await say("run", "nobody", "--url", url)
    assert (code, "no run 'nobody'" in err) == (2, True)
    code, _, err = await say("run", "--weight", 2, "--url", url)
    assert (code, "which run" in err) == (2, True)
    with pytest.raises(SystemExit):
        main(["run", "grpo", "--max-jobs", "many"])


async def test_an_operator_weighs_tenants_straight_on_redis(say: Say, settings: RedisSettings) -> None:
    redis = ("--redis", settings.url, "--namespace", settings.namespace)
    assert (await say("tenant", *redis))[1] == "every tenant has weight 1 and no quota\n"
    code, out, _ = await say("tenant", "ann", "--weight", 3, "--max-jobs", 100, *redis)
    assert (code, out.splitlines()[1].split()) == (0, ["ann", "3.0", "max_jobs", "100"])
    assert (await say("tenant", *redis))[1] == out
    assert (await say("tenant", "ann", "--weight", -1, *redis))[0] == 2
    assert (await say("tenant", "a:b", "--weight", 1, *redis))[0] == 2
    await say("tenant", "ann", "--weight", 1, "--max-jobs", "none", *redis)
    assert (await say("tenant", *redis))[1] == "every tenant has weight 1 and no quota\n"


async def test_status_shows_what_each_run_holds_and_why_it_waits(say: Say, url: str, settings: RedisSettings) -> None:
    async with httpx.AsyncClient(base_url=url) as http:
        await http.post("/v1/batches", json=batch(run="grpo", groups=3, n=4))
        await http.post("/v1/batches", json=batch(run="grpo", name="check", groups=2, purpose="eval"))
    _, out, _ = await say("run", "grpo", "--json", "--url", url)
    assert (json.loads(out)["run_id"], json.loads(out)["backlog"]) == ("grpo", 5)
    _, out, _ = await say("status", "--json", "--redis", settings.url, "--namespace", settings.namespace)
    assert json.loads(out)["runs"]["default:grpo"]["backlog_eval"] == 2
    assert json.loads(out)["service"]["backlog_by_tenant"] == {"default": 5}
    _, out, _ = await say("status", "--redis", settings.url, "--namespace", settings.namespace)
    [row] = [line for line in out.splitlines() if line.startswith("default:grpo")]
    assert row.split()[:6] == ["default:grpo", "1.0", "5", "2", "0", "0"]
    assert row.endswith("no init worker is alive: start prorl-worker --stage init")
