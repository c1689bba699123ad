"""Estimates against brute force, published values and simulation."""

import itertools
import math
import random
import statistics as library

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_mq.evaluation import paired, statistics, student

SOLVED = st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n)))
SHARES = st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), min_size=2, max_size=12)


def chosen(n: int, solved: int, k: int) -> list[tuple[bool, ...]]:
    """Every choice of k of n samples."""
    return list(itertools.combinations([place < solved for place in range(n)], k))


@given(SOLVED)
def test_pass_at_k_is_the_share_of_choices_with_a_solved_sample(case: tuple[int, int, int]) -> None:
    choices = chosen(*case)
    assert statistics.pass_at(*case) == pytest.approx(sum(map(any, choices)) / len(choices))
    assert statistics.pass_all(*case) == pytest.approx(sum(map(all, choices)) / len(choices))


def test_pass_at_k_of_the_paper() -> None:
    """The numerically stable product that Chen et al. print as figure 3 gives the same numbers."""

    def printed(n: int, c: int, k: int) -> float:
        return 1.0 if n - c < k else 1.0 - math.prod(1.0 - k / i for i in range(n - c + 1, n + 1))

    for case in [(200, 0, 100), (200, 1, 100), (200, 37, 10), (100, 99, 1), (5, 3, 3), (1024, 512, 1024)]:
        assert statistics.pass_at(*case) == pytest.approx(printed(*case), abs=1e-12)
    with pytest.raises(ValueError, match="k = 3 from 1 of 2"):
        statistics.pass_at(2, 1, 3)


def test_the_estimators_are_without_bias() -> None:
    """Over all outcomes of n samples that solve with chance p, their mean is 1 - (1 - p)^k, and p^k."""
    n, p = 5, 0.3
    for k in range(1, n + 1):
        weights = [math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
        at = math.fsum(w * statistics.pass_at(n, c, k) for c, w in enumerate(weights))
        every = math.fsum(w * statistics.pass_all(n, c, k) for c, w in enumerate(weights))
        assert (at, every) == (pytest.approx(1 - (1 - p) ** k), pytest.approx(p**k))


@pytest.mark.parametrize(
    ("df", "p", "t"),
    [(1, 0.975, 12.706), (2, 0.975, 4.303), (4, 0.975, 2.776), (10, 0.975, 2.228), (30, 0.975, 2.042),
     (120, 0.975, 1.980), (5, 0.95, 2.015), (10, 0.8, 0.879), (math.inf, 0.975, 1.960)],
)  # fmt: skip
def test_quantiles_of_t_are_those_of_the_printed_tables(df: float, p: float, t: float) -> None:
    assert student.quantile(p, df) == pytest.approx(t, abs=6e-4)


@given(st.floats(0.501, 0.999), st.floats(0.5, 300))
def test_a_quantile_is_the_inverse_of_the_distribution(p: float, df: float) -> None:
    assert student.cumulative(student.quantile(p, df), df) == pytest.approx(p, abs=1e-7)


@given(SHARES)
def test_the_standard_error_is_that_of_the_tasks_values(values: list[float]) -> None:
    found = statistics.mean(values, samples=4 * len(values))
    assert found is not None
    assert found.se is not None
    assert found.low is not None
    assert found.high is not None
    assert found.value == pytest.approx(library.mean(values))
    assert found.se == pytest.approx(library.stdev(values) / math.sqrt(len(values)))
    assert 0.0 <= found.low <= found.value <= found.high <= 1.0


@given(SHARES)
def test_it_is_millers_clustered_error_but_for_few_clusters(values: list[float]) -> None:
    """sqrt(sum over clusters of (sum of residuals)^2) / n of his section 2.2, with 4 samples a task."""
    samples = [[float(place < 4 * value) for place in range(4)] for value in values]
    m, n = len(values), 4 * len(values)
    middle = sum(map(sum, samples)) / n
    clustered = math.sqrt(sum(sum(each - middle for each in task) ** 2 for task in samples)) / n
    found = statistics.mean(values)
    assert found is not None
    assert found.se == pytest.approx(clustered * math.sqrt(m / (m - 1)))


def covered(*, clustered: bool) -> float:
    """How often the interval has the true share, where 20 samples of a task are nearly alike."""
    draw, hits, rounds = random.Random(7), 0, 400
    for _ in range(rounds):
        chances = [draw.choice([0.05, 0.95]) for _ in range(20)]
        tasks = [[float(draw.random() < chance) for _ in range(20)] for chance in chances]
        values = [sum(each) / 20 for each in tasks] if clustered else [each for task in tasks for each in task]
        found = statistics.mean(values, samples=400)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 0.5 <= found.high
    return hits / rounds


def test_intervals_have_the_true_value_as_often_as_they_say() -> None:
    assert 0.92 <= covered(clustered=True) <= 0.985


def test_an_interval_that_takes_samples_for_independent_does_not() -> None:
    """The control: without clusters it has the true value in less than half of all cases."""
    assert covered(clustered=False) < 0.5


def test_a_single_task_has_no_error_and_equal_ones_an_interval_all_the_same() -> None:
    assert statistics.mean([0.5], samples=4) == statistics.Estimate(value=0.5, tasks=1)
    assert statistics.mean([]) is None
    every = statistics.mean([1.0] * 10, samples=80)
    assert every is not None
    assert every.low is not None
    assert (every.se, every.high) == (0.0, 1.0)
    assert every.low == pytest.approx(0.7225, abs=1e-4)  # Wilson's for 10 of 10, and not for 80 of 80


def test_sets_are_weighted_and_their_errors_with_them() -> None:
    one, two = statistics.mean([0.0, 1.0, 1.0, 0.0]), statistics.mean([1.0, 1.0, 0.0])
    assert one is not None
    assert two is not None
    assert one.se is not None
    assert two.se is not None
    total = statistics.weighted([(3.0, one), (1.0, two), (0.0, statistics.Estimate(value=9.0, tasks=1))])
    assert total is not None
    assert total.tasks == 7
    assert total.value == pytest.approx(0.75 * 0.5 + 0.25 * 2 / 3)
    assert total.se == pytest.approx(math.hypot(0.75 * one.se, 0.25 * two.se))


DIFFERENCES = st.lists(st.sampled_from([-1.0, -0.5, -0.25, 0.0, 0.25, 0.5, 1.0]), min_size=2, max_size=9)


@given(DIFFERENCES)
def test_the_permutation_test_counts_every_choice_of_signs(values: list[float]) -> None:
    least = abs(sum(values))
    choices = list(itertools.product((1, -1), repeat=len(values)))
    large = sum(abs(sum(s * v for s, v in zip(signs, values, strict=True))) >= least - 1e-9 for signs in choices)
    p, how = paired.permutation(values)
    assert (how, p) == ("exact", pytest.approx(large / len(choices)))


def test_many_differences_are_drawn_and_the_draw_repeats() -> None:
    values = [0.5 if place % 3 else -0.5 for place in range(30)]
    exact = sum(math.comb(30, k) for k in range(31) if abs(2 * k - 30) >= 10) / 2**30
    p, how = paired.permutation(values)
    assert (p, how) == paired.permutation(values)
    assert p == pytest.approx(exact, abs=0.01)
    assert "seed" in how


def test_the_sign_test_is_that_of_the_tables() -> None:
    """Two-sided p of 1 of 10 and of 2 of 12: Siegel, table D."""
    assert paired.sign(9, 1) == pytest.approx(0.0215, abs=1e-4)
    assert paired.sign(2, 10) == pytest.approx(0.0386, abs=1e-4)
    assert (paired.sign(0, 0), paired.sign(3, 3)) == (1.0, 1.0)


@given(DIFFERENCES)
def test_a_set_alone_is_the_paired_t_test(values: list[float]) -> None:
    found = paired.compare([(2.0, values)])
    assert found is not None
    assert found.se is not None
    assert found.difference == pytest.approx(library.mean(values))
    assert found.se == pytest.approx(library.stdev(values) / math.sqrt(len(values)))
    assert found.wins + found.losses + found.ties == len(values)


def test_the_difference_that_is_found_is_found_in_80_of_100() -> None:
    """The smallest difference that a comparison states is significant about so often when it is the true one."""
    draw, hits, rounds, sigma, m = random.Random(3), 0, 400, 0.4, 8
    true = (student.quantile(0.975, m - 1) + student.quantile(0.8, m - 1)) * sigma / math.sqrt(m)
    for _ in range(rounds):
        found = paired.compare([(1.0, [draw.gauss(true, sigma) for _ in range(m)])])
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        hits += not found.low <= 0.0 <= found.high
    assert 0.74 <= hits / rounds <= 0.87


def test_sets_without_a_pair_are_left_out() -> None:
    assert paired.compare([(1.0, []), (0.0, [1.0])]) is None
    found = paired.compare([(1.0, [1.0, 0.0]), (1.0, [])])
    assert found is not None
    assert found.difference == 0.5


def test_equal_values_have_no_spread_whatever_their_sum_rounds_to() -> None:
    """Three times 1 / 3, added and divided, was not always 1 / 3: the interval took each sample for a task."""
    for n, tasks in [(3, 3), (3, 12), (7, 6), (2, 5)]:
        found = statistics.mean([statistics.pass_at(n, 1, 1)] * tasks, samples=n * tasks)
        assert found is not None
        assert found.se == 0
        assert (found.low, found.high) == statistics.share_interval(1 / n, 0.0, tasks, tasks - 1, n * tasks)
    assert all(statistics.pass_at(n, c, 1) == c / n for n in range(1, 40) for c in range(n + 1))


@pytest.mark.parametrize("values", [[1e200, 0.0], [-1.7e308, 1.7e308, 0.0], [1.7e308] * 3, [1e-200, 3e-200]])
def test_rewards_of_any_size_have_finite_figures(values: list[float]) -> None:
    one = statistics.mean(values)
    assert one is not None
    total = statistics.weighted([(1.0, one), (2.0, one)])
    assert total is not None
    assert all(map(math.isfinite, (one.value, one.se or 0.0, total.value, total.se or 0.0)))
    assert one.value == pytest.approx(math.fsum(each / len(values) for each in values))


def test_sums_that_are_0_but_for_rounding_are_equal() -> None:
    share = 1 - 2 / 3  # not the same float as 1 / 3
    assert paired.permutation([share, -1 / 3, share, -1 / 3]) == (1.0, "exact")
    assert paired.permutation([0.5, 0.25, 0.25]) == (0.25, "exact")


@pytest.mark.parametrize("values", [[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
def test_equal_differences_have_no_interval(values: list[float]) -> None:
    """It would be as wide as nothing."""
    found = paired.compare([(1.0, values)])
    assert found is not None
    assert (found.difference, found.se, found.low, found.high, found.found) == (values[0], 0.0, None, None, None)
    other = paired.compare([(1.0, [*values, 0.5])])
    assert other is not None
    assert other.low is not None
