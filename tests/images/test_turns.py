"""Turns of fetches: who gets a place that is free."""

import random

import pytest

from prorl_mq.schema.ids import RunRef, run_ref
from workers.node.images import turns
from workers.node.images.turns import AT_ONCE, WAITING_S, FetchTurns

BIG, SMALL, OTHER = run_ref("a", "big"), run_ref("a", "small"), run_ref("b", "one")


def full(of: FetchTurns) -> None:
    assert all(of.take(f"big{each}", BIG) for each in range(AT_ONCE))
    assert not of.take("next", BIG)


def test_no_more_than_so_many_at_once_and_one_under_way_again() -> None:
    made = FetchTurns()
    full(made)
    assert made.take("big0", OTHER)


@pytest.mark.parametrize("run", [SMALL, OTHER])
def test_a_place_goes_to_the_run_that_has_the_least(run: RunRef) -> None:
    made = FetchTurns()
    full(made)
    assert not made.take("one", run)
    made.done("big0")
    assert not made.take("next", BIG)
    assert made.take("one", run)


def test_a_tenant_with_many_runs_gets_no_more_than_one_with_one() -> None:
    made = FetchTurns()
    for each in range(AT_ONCE):
        assert made.take(f"x{each}", run_ref("a", f"run{each}"))
    assert not made.take("one", OTHER)
    assert not made.take("more", run_ref("a", "run9"))
    made.done("x0")
    assert not made.take("more", run_ref("a", "run9"))
    assert made.take("one", OTHER)


class FirstCome(FetchTurns):
    """The control: a place goes to whoever asks first when it is free."""

    def take(self, key: str, run: RunRef) -> bool:
        if len(self._under_way) >= AT_ONCE:
            return False
        self._under_way[key] = run
        return True


def fetched_before_the_one(made: FetchTurns, seed: int) -> int:
    """Of 500 images of a run, those that were begun before another run's only one; jobs ask in any order."""
    chance, left = random.Random(seed), [*(f"big{each}" for each in range(500)), "one"]
    running: list[tuple[int, str]] = []
    for now in range(10_000):
        for end, key in list(running):
            if end == now:
                made.done(key)
                running.remove((end, key))
        for key in chance.sample(left, len(left)):
            if made.take(key, OTHER if key == "one" else BIG):
                if key == "one":
                    return 501 - len(left)
                left.remove(key)
                running.append((now + chance.randrange(2, 6), key))
    raise AssertionError("it was never begun")


def test_one_image_does_not_wait_for_five_hundred_of_another_run() -> None:
    assert max(fetched_before_the_one(FetchTurns(), seed) for seed in range(10)) <= 2 * AT_ONCE
    assert min(fetched_before_the_one(FirstCome(), seed) for seed in range(10)) > 2 * AT_ONCE


def test_runs_that_have_equally_much_alternate() -> None:
    made, order = FetchTurns(), list[RunRef]()
    for number in range(AT_ONCE):
        made.take(f"kept{number}", run_ref("c", "long"))
    for number in range(6):
        for run in (BIG, SMALL):  # both ask while there is no place
            assert not made.take(f"{run} {number}", run)
        made.done(f"kept{number}" if number == 0 else f"{order[-1]} {number - 1}")
        order.append(next(run for run in (BIG, SMALL) if made.take(f"{run} {number}", run)))
    assert order == [BIG, SMALL] * 3


def test_a_run_that_asks_no_longer_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(turns, "monotonic", lambda: now)
    made = FetchTurns()
    full(made)
    assert not made.take("one", OTHER)
    made.done("big0")
    assert not made.take("next", BIG)
    now += WAITING_S
    assert made.take("next", BIG)


def test_what_is_remembered_ends_with_the_fetches() -> None:
    made = FetchTurns()
    for number in range(100):
        assert made.take("x", run_ref("a", f"run{number}"))
        made.done("x")
    assert made._turns == {}
