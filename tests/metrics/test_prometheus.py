"""A real Prometheus loads the rules, finds the processes, and answers every query of the dashboard."""

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from prorl_mq.process.ports import free_port
from prorl_mq.store.server import fitness
from prorl_mq.store.server.connection import RedisSettings, connect
from tests.api.process import started
from tests.api.service import announce_source, batch
from tests.metrics.table import ROOT, rows, series

pytestmark = pytest.mark.anyio

OPS = ROOT / "ops" / "prometheus"
TOOLS = Path(os.environ.get("PRORL_SANDBOX_TOOLS") or ROOT / ".state").absolute() / "prometheus" / "bin"
WITHIN_S = 90.0


@pytest.fixture(scope="module")
def promtool() -> Path:
    if not (TOOLS / "promtool").exists():
        pytest.fail("no Prometheus: run `make prometheus`") if os.environ.get("CI") else pytest.skip(
            "no Prometheus: run `make prometheus`"
        )
    return TOOLS / "promtool"


def names(query: str) -> set[str]:
    return set(re.findall(r"\bprorl_\w+", query))


def dashboard() -> list[str]:
    panels = json.loads((OPS / "grafana-dashboard.json").read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


def test_every_query_of_the_dashboard_and_the_alerts_is_about_a_metric_of_the_table() -> None:
    queries = dashboard()
    assert len(queries) > 20
    for query in [*queries, (OPS / "alerts.yml").read_text()]:
        assert names(query) <= series()


def test_each_alert_fires_in_trouble_and_none_in_calm(promtool: Path) -> None:
    argv = [promtool, "test", "rules", "alerts_test.yml"]
    done = subprocess.run(argv, cwd=OPS, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    alerts = re.findall(r"alert: (\w+)", (OPS / "alerts.yml").read_text())
    told = (OPS / "alerts_test.yml").read_text()
    assert [alert for alert in alerts if f'alertname="{alert}"' not in told] == []


def test_what_an_alert_counts_of_a_worker_is_there_before_it_first_happens() -> None:
    """`increase` sees no rise where a series begins with its first burst: the alert would miss it."""
    text = (OPS / "alerts.yml").read_text()
    wanted = re.findall(r'(?:increase|rate)\((prorl_\w+)\{(\w+)="(\w+)"\}', text)
    ours = {row.name + "_total" for row in rows() if "worker" in row.sources}
    code = "import workers.metrics as m, prometheus_client as p; print(p.generate_latest(m.REGISTRY).decode())"
    fresh = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = [(name, label, value) for name, label, value in wanted if name in ours]
    assert len(found) >= 2
    assert [each for each in found if f'{each[0]}{{{each[1]}="{each[2]}"}} 0.0' not in fresh] == []


def test_the_example_configuration_is_valid(promtool: Path) -> None:
    argv = [promtool, "check", "config", "--syntax-only", "prometheus.yml"]
    done = subprocess.run(argv, cwd=OPS, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


class Prometheus:
    """One that scrapes every second."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def ask(self, path: str, **query: str) -> Any:
        answer = await self._client.get(f"/api/v1/{path}", params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]

    async def until(self, what: Callable[[], Awaitable[Any]]) -> Any:
        """Its next scrape cannot be waited for, so it is looked at again and again."""
        async with asyncio.timeout(WITHIN_S):
            while not (found := await what()):
                await asyncio.sleep(0.2)
        return found

    async def alerts(self) -> dict[str, str]:
        return {each["labels"]["alertname"]: each["state"] for each in (await self.ask("alerts"))["alerts"]}

    async def up(self) -> set[str]:
        targets = (await self.ask("targets", state="active"))["activeTargets"]
        return {each["labels"]["job"] for each in targets if each["health"] == "up"}


@contextlib.asynccontextmanager
async def prometheus(directory: Path, api: str, state: Path) -> AsyncIterator[Prometheus]:
    config = (OPS / "prometheus.yml").read_text()
    config = config.replace("15s", "1s").replace("127.0.0.1:8080", api.removeprefix("http://"))
    config = config.replace("alerts.yml", str(OPS / "alerts.yml")).replace("../../.state", str(state))
    (directory / "prometheus.yml").write_text(config)
    port = free_port()
    argv = [TOOLS / "prometheus", f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/data"]
    argv += [f"--web.listen-address=127.0.0.1:{port}"]
    process = await asyncio.create_subprocess_exec(*argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30) as client:
            async with asyncio.timeout(WITHIN_S):
                while not await ready(client):
                    await asyncio.sleep(0.1)
            yield Prometheus(client)
    finally:
        process.terminate()
        await process.wait()


async def ready(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/-/ready")).is_success
    except httpx.HTTPError:
        return False


@contextlib.asynccontextmanager
async def worker(settings: RedisSettings, state: Path) -> AsyncIterator[None]:
    argv = [sys.executable, "-m", "workers", "--stage", "eval", "--redis", settings.url, "--sandbox", "none"]
    argv += ["--namespace", settings.namespace, "--state-dir", str(state)]
    process = await asyncio.create_subprocess_exec(*argv)
    try:
        yield
    finally:
        process.terminate()
        assert await process.wait() == 0


async def test_a_real_prometheus_finds_api_and_worker_and_raises_what_is_wrong(
    settings: RedisSettings, tmp_path: Path, promtool: Path
) -> None:
    """Jobs wait and no INIT worker is alive; Redis has little memory left, until it is given more."""
    state = tmp_path / "state"
    await announce_source(settings)
    async with (
        started(settings) as (_, url),
        worker(settings, state),
        prometheus(tmp_path, url, state) as prom,
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as client,
        contextlib.AsyncExitStack() as stack,
    ):
        assert (await client.post("/v1/batches", json=batch(groups=2))).status_code == 202
        await stack.enter_async_context(little_memory(settings))

        async def all_up() -> bool:
            return await prom.up() == {"prorl-api", "prorl-workers"}

        async def raised() -> bool:
            alerts = await prom.alerts()
            return {"ProrlWorkersMissing", "ProrlRedisMemoryHigh"} <= set(alerts) and (
                alerts["ProrlRedisMemoryHigh"] == "firing"
            )

        async def depth() -> Any:
            return (await prom.ask("query", query="prorl_backlog_groups == 2"))["result"]

        await prom.until(all_up)
        await prom.until(raised)
        await prom.until(depth)
        rules = [rule for group in (await prom.ask("rules"))["groups"] for rule in group["rules"]]
        assert {rule["health"] for rule in rules} <= {"ok", "unknown"}
        for query in dashboard():
            await prom.ask("query", query=query.replace("$__rate_interval", "1m"))

        async def cured() -> bool:
            alerts = await prom.alerts()
            return "ProrlRedisMemoryHigh" not in alerts and "ProrlWorkersMissing" in alerts

        await stack.aclose()
        await prom.until(cured)
    assert list((state / "metrics").iterdir()) == []


@contextlib.asynccontextmanager
async def little_memory(settings: RedisSettings) -> AsyncIterator[None]:
    """Four fifths of what the server may use are in use."""
    redis = connect(settings)
    try:
        used = int((await fitness.info(redis, "memory"))["used_memory"])
        await redis.execute_command("CONFIG", "SET", "maxmemory", str(used * 5 // 4))
        yield
    finally:
        await redis.execute_command("CONFIG", "SET", "maxmemory", "0")
        await redis.aclose()
