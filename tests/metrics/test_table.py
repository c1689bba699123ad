"""The table of metrics is what the processes really serve."""

from collections.abc import Iterable

import httpx
import pytest
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.parser import text_string_to_metric_families

from prorl_mq.process.loop_lag import LoopLag
from prorl_mq.schema.messages import Stage
from prorl_mq.store import breakers
from prorl_mq.store.server.connection import RedisSettings
from tests.api.service import Worker, announce_source, api, batch, closed
from tests.cells.test_strange_cells import proper, routed
from tests.cells.test_strange_cells import served as strange
from tests.metrics.table import rows
from workers import metrics
from workers.node import keeper_metrics

pytestmark = pytest.mark.anyio

BACKEND = "http://127.0.0.1:9"
Described = dict[str, tuple[str, tuple[str, ...]]]


def wanted(source: str) -> Described:
    return {row.name: (row.kind, row.labels) for row in rows() if source in row.sources}


def without(labels: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(label for label in labels if label != "le"))


def served(families: Iterable[Metric]) -> Described:
    return {
        family.name: (family.type, without(family.samples[0].labels if family.samples else ()))
        for family in families
        if family.name.startswith("prorl_") and not family.name.endswith("_created")  # those the library adds
    }


async def scrape(client: httpx.AsyncClient) -> list[Metric]:
    answer = await client.get("/metrics")
    assert answer.status_code == 200
    return list(text_string_to_metric_families(answer.text))


async def test_the_api_serves_its_part_of_the_table(settings: RedisSettings) -> None:
    await announce_source(settings)
    async with api(settings) as client, Worker(settings) as worker:
        await client.post("/v1/batches", json=batch())
        await worker.take(Stage.INIT)
        await client.post("/v1/pools/policy/backends", json={"address": BACKEND})
        await breakers.failed(worker.store, breakers.image("i"), "SandboxStartFailed: no such image", None)
        assert served(await scrape(client)) == wanted("api")


def test_a_worker_serves_its_part_of_the_table() -> None:
    described = Registered(metrics.REGISTRY)
    LoopLag(described.lag)
    assert described.families() == wanted("worker")


def test_a_keeper_serves_its_part_of_the_table() -> None:
    assert Registered(keeper_metrics.REGISTRY).families() == wanted("keeper")


async def test_a_router_serves_its_part_of_the_table() -> None:
    """Beside the cells' own, of which there are none here."""
    async with strange(proper) as url, routed(good=url, lost="http://127.0.0.1:9") as client:
        assert served(await scrape(client)) == wanted("router")


class Registered:
    """What is in a registry, also series that have no value yet."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.lag = CollectorRegistry()
        self._registry = registry

    def families(self) -> Described:
        found: Described = {}
        for registry in (self._registry, self.lag):
            for collector in list(registry._collector_to_names):
                for family in collector.collect():
                    labels = getattr(collector, "_labelnames", ())
                    if family.name.startswith("prorl_"):
                        found[family.name] = (family.type, tuple(labels))
        return found


async def test_counters_are_the_same_after_a_restart_of_the_api(settings: RedisSettings) -> None:
    """They are Redis's: no process has to live for them, and a repeat of a commit counts once."""
    await announce_source(settings)
    async with api(settings) as client, Worker(settings) as worker:
        await client.post("/v1/batches", json=batch(groups=2))
        await client.post("/v1/batches", json=batch(name="cancelled"))
        await worker.complete()
        await worker.complete()
        await closed(client, "run")
        await client.post("/v1/batches/run:cancelled/cancel")
        await closed(client, "run", limit=3)
    async with api(settings) as client:
        told = {
            (sample.name, tuple(sample.labels.values())): sample.value
            for family in await scrape(client)
            for sample in family.samples
        }
    assert told["prorl_jobs_total", ("completed",)] == 2
    assert told["prorl_groups_total", ("accepted",)] == 2
    assert told["prorl_groups_total", ("cancelled",)] == 1
    assert told["prorl_jobs_total", ("infra_error",)] == 0
    assert ("prorl_inflight_jobs", ("default",)) not in told  # nothing is left in flight
