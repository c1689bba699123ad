"""The service's numbers as Prometheus families. docs/reference/metrics.md is their table."""

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from prorl_mq.rules.breaker import BreakerState
from prorl_mq.schema.messages import Outcome, Verdict
from prorl_mq.store.gauges import Gauges

DAPO = ("accepted", "filtered", "failed", "cancelled", "expired", "carried")
NUMBER = {BreakerState.CLOSED: 0, BreakerState.HALF_OPEN: 1, BreakerState.OPEN: 2}


class _Read(Collector):
    """Hands out what was read from Redis just before."""

    def __init__(self, gauges: Gauges) -> None:
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        yield from self._stages()
        yield from self._plain()
        yield from self._tenants()
        yield from self._backends()
        yield from self._faults()
        yield from self._archive()
        yield from self._counters()

    def _stages(self) -> Iterator[Metric]:
        stages = self._gauges.stages
        named: dict[str, tuple[str, list[float]]] = {
            "queue_depth": (
                "Entries on a stage's streams, queued and leased.",
                [s.load.queued + s.load.held for s in stages],
            ),
            "oldest_age_seconds": ("Age of a stage's oldest entry.", [s.load.oldest_s for s in stages]),
            "workers": ("Living worker processes.", [s.workers for s in stages]),
            "slots": ("Places for jobs in living workers.", [s.slots for s in stages]),
            "busy_slots": ("Places that hold a job.", [s.busy for s in stages]),
        }
        for name, (about, values) in named.items():
            yield _gauge(name, about, "stage", zip((s.stage for s in stages), values, strict=True))

    def _plain(self) -> Iterator[Metric]:
        gauges = self._gauges
        plain = {
            "leased_jobs": ("Jobs under a lease.", gauges.leased),
            "delayed_jobs": ("Jobs that wait for their next attempt.", gauges.delayed),
            "paused_jobs": ("Jobs that are paused.", gauges.paused),
            "due_groups": ("Groups whose verdict is due.", gauges.due),
            "redis_memory_bytes": ("Memory that Redis uses.", gauges.memory_bytes),
            "redis_memory_limit_bytes": ("Its limit; 0 means none.", gauges.memory_limit_bytes),
        }
        for name, (about, value) in plain.items():
            yield GaugeMetricFamily(f"prorl_{name}", about, value=float(value))

    def _tenants(self) -> Iterator[Metric]:
        gauges = self._gauges
        waiting, running = gauges.backlog_by_tenant, gauges.in_flight_by_tenant
        yield _gauge("backlog_groups", "Groups that wait for admission.", "tenant", waiting.items())
        yield _gauge("inflight_jobs", "Jobs admitted and not ended.", "tenant", running.items())

    def _backends(self) -> Iterator[Metric]:
        names = ("pool", "backend")
        held = GaugeMetricFamily("prorl_llm_inflight", "Jobs that hold a backend.", labels=names)
        shut = GaugeMetricFamily("prorl_llm_breaker", "0 closed, 1 half open, 2 open, 3 dead.", labels=names)
        for pool, backend in self._gauges.backends:
            labels = (pool, backend.address)
            held.add_metric(labels, float(backend.in_flight))
            shut.add_metric(labels, float(NUMBER[BreakerState(backend.breaker)] if backend.alive else 3))
        yield from (held, shut)

    def _faults(self) -> Iterator[Metric]:
        lost = GaugeMetricFamily(
            "prorl_lost_length_z", "How much longer lost samples are than their siblings.", labels=("tenant", "run")
        )
        for run, losses in self._gauges.losses.items():
            lost.add_metric(run.split(":"), losses.z)
        yield lost
        family = GaugeMetricFamily(
            "prorl_breaker_open", "1 while jobs of an image or task family wait.", labels=("kind", "name", "tenant")
        )
        for each in self._gauges.failing:
            family.add_metric((each.key.kind, each.key.said.partition(" ")[2], each.key.tenant), float(each.open))
        yield family

    def _archive(self) -> Iterator[Metric]:
        state = self._gauges.archive
        plain = {
            "archive_on": (
                "1 while acknowledged groups are kept for the archive.",
                state.until_ms > self._gauges.at_ms,
            ),
            "archive_fault": ("1 while the archive cannot be written.", bool(state.fault)),
            "archive_waiting_groups": ("Acknowledged groups that wait for the archive.", state.groups),
            "archive_waiting_bytes": ("Their records and trajectories.", state.bytes),
        }
        for name, (about, value) in plain.items():
            yield GaugeMetricFamily(f"prorl_{name}", about, value=float(value))
        results = {name: getattr(state, name) for name in ("archived", "passed_over", "unwanted", "incomplete")}
        yield _counter("archive_groups", "Acknowledged groups, by what has become of them.", "result", results.items())

    def _counters(self) -> Iterator[Metric]:
        told = self._gauges.counters
        yield _counter("jobs", "Jobs that ended.", "outcome", _named(told, "jobs", Outcome))
        reclaims = _named(told, "reclaims", ("reap", "evacuate"))
        yield _counter("reclaims", "Jobs taken back from dead workers or nodes.", "verb", reclaims)
        yield _counter("groups", "Groups of plain batches that closed.", "verdict", _named(told, "groups", Verdict))
        dapo = _named(told, "dapo", DAPO)
        yield _counter("dapo_groups", "Groups of DAPO batches that closed, or were carried over.", "verdict", dapo)
        refilled = (("plain", told.get("refilled", 0)), ("dapo", told.get("dapo:refilled", 0)))
        yield _counter("refilled_samples", "Samples that were replaced by another one.", "batch", refilled)


def _gauge(name: str, about: str, label: str, rows: Iterable[tuple[str, float]]) -> Metric:
    family = GaugeMetricFamily(f"prorl_{name}", about, labels=[label])
    for value, number in rows:
        family.add_metric([value], float(number))
    return family


def _counter(name: str, about: str, label: str, rows: Iterable[tuple[str, int]]) -> Metric:
    family = CounterMetricFamily(f"prorl_{name}", about, labels=[label])
    for value, number in rows:
        family.add_metric([value], float(number))
    return family


def _named(told: Mapping[str, int], kind: str, names: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Also what has not happened yet, so that its first time is a rise from 0."""
    return ((str(name), told.get(f"{kind}:{name}", 0)) for name in names)


def exposition(gauges: Gauges) -> bytes:
    """The families in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Read(gauges))
    return generate_latest(registry)
