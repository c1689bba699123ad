"""Medians, goals, ratios and tables."""

import doctest
import json
from pathlib import Path

import pytest

from bench import measure, report
from bench.queue.goals import judge

ROWS = [
    {"case": "ours", "round": 0, "jobs_s": 8000.0, "redis_us": 90.0, "submit_redis_us": 20.0, "idle_worker_pct": 0.4},
    {"case": "huey", "round": 0, "jobs_s": 1000.0},
    {"case": "rq", "round": 0, "jobs_s": 200.0},
    {"case": "floor", "round": 0, "jobs_s": 20000.0},
    {"case": "ours", "round": 1, "jobs_s": 4000.0, "redis_us": 100.0, "submit_redis_us": 20.0, "idle_worker_pct": 0.6},
    {"case": "huey", "round": 1, "jobs_s": 1000.0},
    {"case": "floor", "round": 1, "jobs_s": 10000.0},
]


@pytest.mark.parametrize("module", [measure, report])
def test_the_examples_in_the_docstrings_hold(module: object) -> None:
    failed, tried = doctest.testmod(module)  # type: ignore[arg-type]
    assert tried > 2
    assert failed == 0


def test_a_goal_at_its_bound_is_met_only_by_an_inclusive_comparison() -> None:
    bounds = [">= 4", "<= 4", "> 4", "< 4", "== 4"]
    assert [report.goal(4.0, wanted).met for wanted in bounds] == [True, True, False, False, True]


def test_a_goal_that_is_no_comparison_is_refused_with_an_example() -> None:
    with pytest.raises(ValueError, match="'about 4' is no goal: write a comparison"):
        report.goal(4.0, "about 4")


def test_a_failed_round_does_not_count_in_the_medians_of_the_others() -> None:
    rows = [{"case": "a", "round": 0, "x": 2.0}, {"case": "a", "round": 1, "error": "no"}]
    assert report.summarise(rows)["a"]["x"] == report.Spread(median=2.0, min=2.0, max=2.0, rounds=1)


def test_a_ratio_pairs_the_figures_of_the_same_round_only() -> None:
    rows = [{"case": "a", "round": 0, "x": 8}, {"case": "b", "round": 1, "x": 2}]
    assert report.ratios(rows, "x", "a", "b") == []


def test_the_queue_goals_compare_with_the_fastest_library_and_count_submission() -> None:
    goals = judge(ROWS)
    found = {name.partition(",")[0]: (each.value, each.met) for name, each in goals.items() if each.value is not None}
    idle = "CPU of our busiest idle worker"
    assert found == {"jobs/s": (0.4, True), "CPU of Redis": (115.0, False), idle: (0.5, True)}
    assert goals["jobs/s, ours over the fastest library"].value == 6.0
    assert goals["jobs/s, ours over the fastest library"].note == "the fastest is huey"


def test_what_was_not_measured_is_not_met_and_says_why() -> None:
    rows = [{"case": "ours", "round": 0, "error": "no worker"}, *(row for row in ROWS if row["case"] != "ours")]
    goals = judge(rows).values()
    assert [(each.value, each.met) for each in goals] == [(None, False)] * len(goals)
    assert {each.note for each in goals} == {"no worker"}


def test_a_result_file_leads_with_its_goals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "OUT", tmp_path)
    path = report.write("x", {"speed": report.goal(1.2, ">= 1")}, {"machine": {"cores": 2}})
    document = json.loads(path.read_bytes())
    assert list(document) == ["name", "goals", "machine"]
    assert document["goals"]["speed"] == {"value": 1.2, "goal": ">= 1", "met": True, "note": ""}
