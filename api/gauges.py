"""The service's numbers as Prometheus families."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from prorl_mq.gauges import Gauges


class _Read(Collector):
    """Hands out what was read from Redis just before."""

    def __init__(self, gauges: Gauges) -> None:
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        gauges = self._gauges
        stages: dict[str, tuple[str, list[float]]] = {
            "queue_depth": ("Entries on a stage's streams, queued and leased.", [s.depth for s in gauges.stages]),
            "oldest_age_seconds": ("Age of a stage's oldest entry.", [s.oldest_age_s for s in gauges.stages]),
            "workers": ("Living worker processes.", [s.workers for s in gauges.stages]),
            "slots": ("Places for jobs in living workers.", [s.slots for s in gauges.stages]),
            "busy_slots": ("Places that hold a job.", [s.busy for s in gauges.stages]),
        }
        for name, (about, values) in stages.items():
            family = GaugeMetricFamily(f"prorl_{name}", about, labels=["stage"])
            for stage, value in zip(gauges.stages, values, strict=True):
                family.add_metric([stage.stage], value)
            yield family
        plain = {
            "backlog_groups": ("Groups that wait for admission.", gauges.backlog_groups),
            "leased_jobs": ("Jobs under a lease.", gauges.leased),
            "delayed_jobs": ("Jobs that wait for their next attempt.", gauges.delayed),
            "due_groups": ("Groups whose verdict is due.", gauges.due),
            "redis_memory_bytes": ("Memory that Redis uses.", gauges.memory_bytes),
            "redis_memory_limit_bytes": ("Its limit; 0 means none.", gauges.memory_limit_bytes),
        }
        for name, (about, value) in plain.items():
            yield GaugeMetricFamily(f"prorl_{name}", about, value=float(value))
        backends = GaugeMetricFamily("prorl_llm_inflight", "Jobs that hold a backend.", labels=["backend"])
        for backend, jobs in gauges.llm_in_flight.items():
            backends.add_metric([backend], float(jobs))
        yield backends


def exposition(gauges: Gauges) -> bytes:
    """The families in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Read(gauges))
    return generate_latest(registry)
