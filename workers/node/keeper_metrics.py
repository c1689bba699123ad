"""The numbers of a node's sandbox keeper. docs/reference/metrics.md is their table."""

from typing import Final

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from sandbox.keeper.wire import Counts

REGISTRY: Final = CollectorRegistry()
ProcessCollector(registry=REGISTRY)

live = Gauge("prorl_sandbox_live", "Sandboxes that belong to jobs.", registry=REGISTRY)
warm = Gauge("prorl_sandbox_warm", "Sandboxes started ahead of need.", registry=REGISTRY)
watched = Gauge("prorl_workers_watched", "RUN workers whose end the keeper sees at once.", registry=REGISTRY)
start = Gauge("prorl_sandbox_warm_start_seconds", "Median of the last 256 starts.", registry=REGISTRY)


class _Counted(Collector):
    """Exports the keeper's own counts."""

    def __init__(self) -> None:
        self.counts: Counts | None = None

    def collect(self) -> list[Metric]:
        now = self.counts
        rows = {
            "leaked": ("Sandboxes that nobody owned, destroyed.", now.leaked_destroyed if now else 0),
            "warm_hits": ("Sandboxes handed out warm.", now.warm_hits if now else 0),
            "cold_starts": ("Requests that no warm sandbox served.", now.cold_starts if now else 0),
        }
        return [CounterMetricFamily(f"prorl_sandbox_{name}", *told) for name, told in rows.items()]


_counted = _Counted()
REGISTRY.register(_counted)


def show(counts: Counts) -> None:
    """Before each scrape."""
    _counted.counts = counts
    live.set(counts.live)
    warm.set(counts.warm)
    watched.set(counts.watched)
    start.set((counts.start_ms_p50 or 0) / 1000)
