"""What training runs are said to show."""

import doctest

from bench import plot
from bench.plot import Point
from bench.train import verdict


def test_the_examples_in_the_docstrings_are_true() -> None:
    failed, tried = doctest.testmod(verdict)
    assert tried > 4
    assert failed == 0


def test_a_rise_that_chance_would_often_give_is_not_called_one() -> None:
    assert verdict.chance([0.0] * 10 + [1.0]) > 0.05
    assert verdict.chance([1.0 / 3] * 30 + [-1.0 / 3] * 5) < 0.001


def test_a_chart_has_an_area_for_each_series_that_has_a_band_and_stays_inside_its_frame() -> None:
    wide, bare = [Point(0.5, 0.9), Point(0.9, 0.3)], [Point(0.4, 0.0), Point(0.6, 0.0)]
    chart = plot.bands("A & B", "step", {"wide": wide, "bare": bare}, top=1.0)
    assert chart.count("<polygon") == 1
    assert chart.count("<polyline") == 2
    assert "A &amp; B" in chart
    [area] = [line for line in chart.splitlines() if "<polygon" in line]
    heights = [float(pair.split(",")[1]) for pair in area.split("'")[1].split()]
    assert len(heights) == 4
    assert min(heights) >= plot.TOP
    assert max(heights) <= plot.HEIGHT - plot.BOTTOM
