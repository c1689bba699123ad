"""The looks at one backend's load, whatever it answers."""

from typing import cast

import pytest

from prorl_mq.duties import probe_backends
from prorl_mq.duties.backend_control import BackendControl, ControlFailed
from prorl_mq.duties.probe_backends import BackendPressure
from prorl_mq.store.pools import BackendInfo, SharedState

pytestmark = pytest.mark.anyio
SEEN = SharedState(info=BackendInfo(address="http://a"))
EVERY_MS = 2_000.0


class Metrics:
    """A backend's metrics, and how often they were asked for."""

    def __init__(self, waiting: int = 0, *, usage: float = 0.2, told: bool = True) -> None:
        self.waiting, self.usage, self.told, self.asked = waiting, usage, told, 0

    async def load_lines(self, *_: object) -> list[bytes]:
        self.asked += 1
        if not self.told:
            raise ControlFailed("timed out")
        lines = (
            "vllm:num_requests_running 4", f"vllm:num_requests_waiting {self.waiting}", "vllm:num_preemptions_total 0",
            f"vllm:kv_cache_usage_perc {self.usage}", 'vllm:cache_config_info{kv_cache_size_tokens="1000"} 1',
        )  # fmt: skip
        return [line.encode() for line in lines]


class Looks:
    """Looks every two seconds."""

    def __init__(self, metrics: Metrics, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms = 1_000_000.0
        self.pressure = BackendPressure(cast("BackendControl", metrics))
        monkeypatch.setattr(probe_backends, "monotonic", lambda: self.now_ms / 1000)

    async def __call__(self, count: int, *, alive: bool = True, loading: bool = False) -> str:
        """The last one's limit."""
        limit = ""
        for _ in range(count):
            self.now_ms += EVERY_MS
            limit = await self.pressure.look("policy", "http://a", SEEN, 4, alive=alive, loading=loading)
        return limit


@pytest.mark.parametrize("loading", [True, False])
async def test_requests_that_wait_for_new_weights_lower_no_limit(
    loading: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backend that is paused for a minute has them wait. The control: they wait for room in its cache."""
    look = Looks(Metrics(waiting=3, usage=0.6), monkeypatch)
    assert bool(await look(30, loading=loading)) is not loading
    shares = {pressure.share for found in look.pressure._seen.values() for pressure, _ in found.values()}
    assert min(shares) == (0.95 if loading else pytest.approx(0.95 * 0.9))


async def test_a_backend_that_tells_no_load_is_asked_for_it_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its metrics may be slow, or many. Once it tells them it is asked at each look; the control does so always."""
    metrics = Metrics(told=False)
    look = Looks(metrics, monkeypatch)
    await look(15)
    assert metrics.asked == 15, "it may be one failure"
    await look(45)
    assert 17 <= metrics.asked <= 19
    metrics.told = True
    await look(16)
    metrics.asked = 0
    await look(10)
    assert metrics.asked == 10


async def test_one_that_comes_back_is_asked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics()
    look = Looks(metrics, monkeypatch)
    await look(100, alive=False)
    assert metrics.asked == 0
    await look(2)
    assert metrics.asked == 2
