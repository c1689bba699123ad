"""`carry` and `ordered` accept what waiting for everything would; the test would see it if they did not.

Batches are simulated with the service's own formulas; `bench/tests/test_dapo.py` holds the simulation against the real
queue. The same with 20,000 prompts is a part of `make bench-dapo`.
"""

import asyncio
from functools import cache

import pytest

from bench.dapo import bias
from bench.dapo.bias import FEATURES, SIGNIFICANCE, Difference, Size
from prorl_mq.schema.messages import Stage

SIZE = Size(prompts=4_000, target=16, slots={Stage.INIT: 16, Stage.RUN: 64, Stage.EVAL: 16})
SEED = 7


@cache
def reference() -> dict[str, list[float]]:
    """Another population of prompts, all of them waited for."""
    work = bias.workload(SEED + bias.REFERENCE_SEED, SIZE)
    return bias.features(work, bias.everything(work, SIZE))


def differences(mode: str) -> dict[str, Difference]:
    work = bias.workload(SEED, SIZE)
    found = bias.features(work, asyncio.run(bias.select(mode, work, SIZE)).accepted)
    return {name: bias.compare(found[name], reference()[name]) for name in FEATURES}


@pytest.mark.parametrize("mode", ["carry", "ordered"])
def test_accepted_groups_are_like_those_of_waiting_for_everything(mode: str) -> None:
    found = differences(mode)
    assert min(each.p for each in found.values()) > SIGNIFICANCE, found


@pytest.mark.parametrize("feature", ["length", "reward"])
def test_the_same_test_finds_the_bias_of_cancel(feature: str) -> None:
    found = differences("cancel")[feature]
    assert found.p < SIGNIFICANCE / 10, found


def test_groups_that_end_early_are_preferred_by_cancel() -> None:
    """The longest tenth of the groups is accepted less than half as often as all."""
    work = bias.workload(SEED, SIZE)
    shares = bias.shares(work, asyncio.run(bias.select("cancel", work, SIZE)))
    assert shares[-1] < 0.5
    assert shares[0] > 1.1


def test_a_shift_of_a_fifth_of_a_standard_deviation_would_be_found() -> None:
    """The stated power, at the size of the smaller of the two samples that must be alike."""
    work = bias.workload(SEED, SIZE)
    size = len(asyncio.run(bias.select("ordered", work, SIZE)).accepted)
    assert bias.power(reference()["length"], size, 0.2, draws=40, seed=1) >= 0.95
