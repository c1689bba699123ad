"""The gate refuses what costs more than the last release, and an evening of benchmarks survives one that fails."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench import evening, report
from bench.check import figures, release
from bench.check.release import Part, Release, judge
from bench.queue.rounds import Bench, run_case
from bench.redis_server import private_server

LAST = Release(
    of="1.0",
    machine="here",
    parts={
        "batches": Part(tolerance=0.05, reason="a count", figures={"commands a job": 20.0}),
        "cpu": Part(tolerance=0.2, reason="a ratio", figures={"worker CPU": 5.0}),
    },
)


@pytest.mark.parametrize(
    ("found", "refused"),
    [
        ({"batches": {"commands a job": 20.9}, "cpu": {"worker CPU": 5.9}}, {}),
        ({"batches": {"commands a job": 12.0}, "cpu": {"worker CPU": 2.0}}, {}),
        ({"batches": {"commands a job": 21.1}, "cpu": {"worker CPU": 5.9}}, {"commands a job": "ROSE"}),
        ({"batches": {"commands a job": 20.9}, "cpu": {"worker CPU": 6.1}}, {"worker CPU": "ROSE"}),
        ({"batches": {"commands a job": 20.0}}, {"worker CPU": "not measured"}),
        ({**{name: part.figures for name, part in LAST.parts.items()}, "new": {"x": 1}}, {"x": "not recorded"}),
    ],
)
def test_a_figure_over_its_tolerance_or_without_a_value_is_refused_by_name(
    found: Mapping[str, Mapping[str, float]], refused: Mapping[str, str]
) -> None:
    verdicts = judge(LAST, found)
    assert {each.name: each.said for each in verdicts if each.refused} == refused
    assert all(each.name in release.table(verdicts) for each in verdicts)


def test_a_record_has_new_figures_and_the_old_tolerances(tmp_path: Path) -> None:
    file = tmp_path / "release.toml"
    found = {"batches": {'"commands" a job': 18.1234}, "cpu": {"worker CPU": 4.0}}
    release.write(release.recorded(LAST, found, of="2.0", machine="there"), file)
    now = release.read(file)
    assert (now.of, now.machine, now.parts["batches"].figures) == ("2.0", "there", {'"commands" a job': 18.1})
    assert [(part.tolerance, part.reason) for part in now.parts.values()] == [(0.05, "a count"), (0.2, "a ratio")]


def queue_rows() -> list[dict[str, Any]]:
    """A machine that is twice as slow in the second round."""
    fields = ("commands", "lone_requests", "lone_commands", "worker_us", "api_us", "redis_us")
    return [
        {"case": case, "round": number, **dict.fromkeys(fields, value * (number + 1))}
        for case, value in (("floor", 10.0), ("ours", 30.0))
        for number in range(2)
    ]


def test_the_release_has_the_figures_that_are_measured_and_a_slow_round_changes_none() -> None:
    found, last = figures.of_queue(queue_rows()), release.read()
    assert {name: set(part) for name, part in found.items()} == {
        name: set(part.figures) for name, part in last.parts.items() if name != "calls"
    }
    assert set(found["cpu"].values()) == {3.0}
    assert found["batches"] == {"commands a job": 30.0}
    assert all(f"{kind}, bash true, bash" in last.parts["calls"].figures for kind in figures.KINDS)
    assert all(0 < part.tolerance <= 0.25 and part.reason for part in last.parts.values())


def test_a_job_sends_no_more_commands_than_in_the_last_release() -> None:
    """A short form of the gate: a count at full batches, which other work on the machine does not change."""
    [ours] = [case for case in figures.all_cases() if case.name == figures.OURS]
    case = msgspec.structs.replace(ours, jobs=2_400, measures=("throughput",))
    with private_server() as (server, scratch):
        row = run_case(case, Bench(server=server, scratch=scratch, venvs=scratch, idle_s=0))
    part = release.read().parts["batches"]
    assert float(row["commands"]) <= part.figures["commands a job"] * (1 + 2 * part.tolerance)


MAKE = """
import pathlib, sys, time
target, out = sys.argv[2], pathlib.Path(sys.argv[1])
print("says", target, flush=True)
if target == "hangs":
    time.sleep(600)
if target == "errs":
    (out / "errs.json").write_text('{"rounds": [{"case": "rq", "error": "no Redis"}, {"case": "ours"}], "errors": {}}')
sys.exit(target == "breaks")
"""


def test_an_evening_continues_after_one_that_fails_and_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "old.json").write_text("{}")
    monkeypatch.setattr(report, "OUT", out)
    make: Sequence[str] = [sys.executable, "-c", MAKE, str(out)]
    folder = tmp_path / "bench" / "today"
    done = evening.every(["breaks", "errs", "fine"], folder, make)
    assert [(each.target, each.status, each.failed) for each in done] == [
        ("breaks", 1, True), ("errs", 0, True), ("fine", 0, False),
    ]  # fmt: skip
    assert done[1].errors == ["rq: no Redis"]
    assert sorted(path.name for path in folder.iterdir()) == [
        "breaks.txt", "errs.json", "errs.txt", "fine.txt", "machine.json",
    ]  # fmt: skip
    assert (folder / "fine.txt").read_text() == "says fine\n"
    written = msgspec.json.decode((folder / "machine.json").read_bytes())
    assert written["machine"]["server"].startswith(("Redis", "Valkey"))
    assert [each["target"] for each in written["benchmarks"]] == ["breaks", "errs", "fine"]
    assert all(len(each["load_at_start"]) == len(each["load_at_end"]) == 3 for each in written["benchmarks"])
    assert "status 1" in capsys.readouterr().out


def test_a_benchmark_that_hangs_is_ended(tmp_path: Path) -> None:
    done = evening.run("hangs", tmp_path, [sys.executable, "-c", MAKE, str(tmp_path)], limit_s=3)
    assert (done.status, done.failed) == (None, True)
    assert (tmp_path / "hangs.txt").read_text() == "says hangs\n"


def test_every_benchmark_of_the_evening_is_a_target() -> None:
    makefile = (evening.ROOT / "Makefile").read_text()
    page = (evening.ROOT / "docs" / "reference" / "benchmarks.md").read_text()
    assert all(f"\n{target}:" in makefile and f"`make {target}`" in page for target in evening.TARGETS)
