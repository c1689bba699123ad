"""What alerts of failures are made of is measured: from what happened in Redis to the number that Prometheus reads."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from api.gauges import exposition
from prorl_mq.cli.overview import overview
from prorl_mq.duties.settle import Settling
from prorl_mq.rules.breaker import SHARED
from prorl_mq.schema.messages import Outcome, Stage
from prorl_mq.store import breakers, gauges
from sandbox.errors import SandboxStartFailed
from sandbox.fake import FakeProvider, FakeSandbox
from sandbox.protocol import SandboxProvider, SandboxSpec
from tests.support.queue import LINGER_MS, Queue
from workers.inference.waits import Waits
from workers.metrics import REGISTRY
from workers.node.starts import NodeGuard

pytestmark = pytest.mark.anyio
ALERTS = (Path(__file__).parents[2] / "ops" / "prometheus" / "alerts.yml").read_text()
GROUPS, N, LOST = 15, 8, 2


def limit(alert: str) -> float:
    """The number above which an alert fires."""
    rule = ALERTS.partition(f"alert: {alert}\n")[2].partition("annotations:")[0]
    [found] = re.findall(r" > (\d+)\n", rule)
    return float(found)


def measured(now: gauges.Gauges, series: str) -> float:
    [found] = re.findall(rf"^{re.escape(series)} (\S+)$", exposition(now).decode(), re.MULTILINE)
    return float(found)


async def with_losses(queue: Queue, lost: Callable[[int], set[int]]) -> tuple[float, str]:
    """Groups whose samples differ in length, some of which end null in EVAL; the number, and what `status` says."""
    for number in range(GROUPS):
        await queue.admitted(f"g{number}", batch=f"b{number}", n=N)
        for place, held in enumerate(await queue.take(Stage.INIT, count=N)):
            outcome = Outcome.STAGE_TIMEOUT if place in lost(number) else Outcome.COMPLETED
            await queue.finish(held, outcome, response_tokens=100 * (place + 1))
    settling = Settling(queue.store, linger_ms=LINGER_MS)
    async with asyncio.timeout(60):
        while len(await queue.results()) < GROUPS:
            await settling.turn()
    await settling.aclose()
    now = await gauges.read(queue.store)
    [said] = [part for part in await overview(queue.store, now) if part.startswith("run acme:r")] or [""]
    return measured(now, 'prorl_lost_length_z{run="r",tenant="acme"}'), said


async def test_losses_of_long_samples_fire_the_alert_and_status_says_so(queue: Queue) -> None:
    z, said = await with_losses(queue, lambda _: {N - 2, N - 1})
    assert z > limit("ProrlBiasedLoss")
    assert f"biased loss: {GROUPS * LOST} samples ended null after their rollout, and they are longer than" in said


async def test_losses_of_any_length_fire_nothing(queue: Queue) -> None:
    """The control."""
    z, said = await with_losses(queue, lambda number: {number % N, (number + N // 2) % N})
    assert (abs(z) < limit("ProrlBiasedLoss"), said) == (True, "")


async def test_a_breaker_is_1_while_it_is_open_and_gone_after_a_success(queue: Queue) -> None:
    key, series = breakers.family("acme", Stage.EVAL, "sums"), 'name="sums in eval",tenant="acme"}'
    series = f'prorl_breaker_open{{kind="family",{series}'
    for failures in range(1, SHARED.failures + 1):
        await breakers.failed(queue.store, key, "RuntimeError: it broke", None)
        opened = measured(await gauges.read(queue.store), series) > limit("ProrlBreakerOpen")
        assert opened is (failures == SHARED.failures)
    await breakers.succeeded(queue.store, key)
    assert series not in exposition(await gauges.read(queue.store)).decode()


class Broken(FakeProvider):
    """Starts nothing."""

    async def create(self, spec: SandboxSpec) -> FakeSandbox:
        raise SandboxStartFailed("no space left on device")


async def test_a_node_is_1_while_it_is_shut() -> None:
    guard = NodeGuard("n1", Waits())

    async def shut_after(provider: SandboxProvider, failures: int) -> bool:
        for _ in range(failures):
            await guard.failed(provider, "somebody")
        return (REGISTRY.get_sample_value("prorl_node_shut") or 0.0) > limit("ProrlNodeShut")

    assert [await shut_after(Broken(node="n1"), failures) for failures in (2, 1)] == [False, True]
    guard.started()
    assert REGISTRY.get_sample_value("prorl_node_shut") == 0.0
