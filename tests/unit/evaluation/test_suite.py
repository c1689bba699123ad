"""Suites are read strictly, and a changed one is told apart from the one that was begun."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from prorl_mq.errors import ConfigurationError
from prorl_mq.evaluation import definition
from prorl_mq.evaluation.suite import Suite, load

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a suite of one set beside twelve rows."""
    rows = [
        {"task_id": f"t{place}", "data_source": "math" if place % 2 else "code", "payload": {"kind": {"level": place}}}
        for place in range(12)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def made(more: str = "", head: str = "") -> Path:
        path = tmp_path / "suite.toml"
        path.write_text(f'name = "s"\n{head}\n[[sets]]\nname = "one"\nrows = "rows.jsonl"\n{more}\n')
        return path

    return made


def ids(suite: Suite) -> list[str]:
    return [task.task_id for each in suite.sets for task in each.tasks]


def test_rows_are_filtered_then_shuffled_then_limited(write: Write) -> None:
    assert ids(load(write(), None)) == [f"t{place}" for place in range(12)]
    assert ids(load(write('filter = { data_source = "math" }'), None)) == [f"t{place}" for place in range(1, 12, 2)]
    assert ids(load(write('filter = { "payload.kind.level" = [2, 4], data_source = "code" }'), None)) == ["t2", "t4"]
    some = ids(load(write("shuffle = 3\nlimit = 5"), None))
    assert some == ids(load(write("shuffle = 3\nlimit = 5"), None))
    assert len(some) == 5
    assert some != sorted(some)
    assert ids(load(write("shuffle = 4\nlimit = 5"), None)) != some


def test_the_command_lines_n_is_before_the_sets_and_that_before_the_suites(write: Write) -> None:
    head = "n = 3\n[sampling]\ntemperature = 0.5\nmax_turns = 9"
    [each] = load(write("n = 4\n[sets.sampling]\nmax_turns = 2", head), None).sets
    assert (each.n, each.sampling.temperature, each.sampling.max_turns) == (4, 0.5, 2)
    assert load(write("", head), None).sets[0].n == 3
    assert load(write("n = 4", head), 7).sets[0].n == 7
    assert load(write(), None).sets[0].n == 1


@pytest.mark.parametrize(
    ("more", "head", "said"),
    [
        ("wieght = 2", "", "unknown field 'wieght' at $.sets[0]: did you mean 'weight'?"),
        ("", "prises = {}", "did you mean 'prices'?"),
        ("[sets.sampling]\ntemprature = 1", "", "set 'one': sampling: unknown field 'temprature'"),
        ("[sets.limits]\nrun_ms = 0", "", "set 'one': limits: "),
        ("weight = 0", "", "every set has the weight 0"),
        ("n = 0", "", "$.sets[0].n"),
        ("solved_at = nan", "", "$.sets[0].solved_at"),
        ("solved_at = inf", "", "$.sets[0].solved_at"),
        ("weight = inf", "", "$.sets[0].weight"),
        ("", "prices = { prompt = inf }", "$.prices.prompt"),
        ("name = 'two'", "", "is not TOML"),
        ('filter = { data_source = "games" }', "", "no row of"),
        ('[[sets]]\nname = "one"\nrows = "rows.jsonl"', "", "two sets are called 'one'"),
        ('[[sets]]\nname = "two"\nrows = "gone.jsonl"', "", "set 'two': "),
        ('[[sets]]\nname = "two"\nrows = "\\u0000"', "", "set 'two': "),
        ("", f"prices = {'[' * 5000}", "is not TOML"),
    ],
)
def test_a_fault_is_named(write: Write, more: str, head: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as fault:
        load(write(more, head), None)
    assert said in str(fault.value)
    assert "suite.toml" in str(fault.value)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("{", "rows.jsonl:13: this is not JSON"),
        ("[]", "this is not a JSON object"),
        ('{"task_id": "x"}', "data_source is missing"),
        ('{"task": {}}', "this is a group request"),
        ('{"task_id": "t1", "data_source": "math"}', "two rows of"),
        ('{"task_id": "x", "data_source": "math", "paylod": {}}', "did you mean 'payload'?"),
    ],
)
def test_a_wrong_row_is_named(write: Write, tmp_path: Path, row: str, said: str) -> None:
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write(row + "\n")
    with pytest.raises(ConfigurationError, match="set 'one'") as fault:
        load(write(), None)
    assert said in str(fault.value)


def test_every_change_is_named_and_an_equal_suite_is_the_same(write: Write, tmp_path: Path) -> None:
    kept = definition.define(load(write("limit = 3"), None), "policy", "r")
    definition.write(tmp_path, kept)
    again = definition.read(tmp_path)
    assert again is not None
    assert not list(definition.differences(again, definition.define(load(write("limit = 3"), None), "policy", "r")))
    text = (tmp_path / "rows.jsonl").read_text()
    (tmp_path / "rows.jsonl").write_text(text.replace('{"level": 0}', '{"level": 99}'))
    more = "limit = 2\nsolved_at = 0.5\n[sets.sampling]\ntop_p = 0.9\n[sets.limits]\nrun_ms = 5"
    now = definition.define(load(write(more), 2), "other", "r")
    assert list(definition.differences(again, now)) == [
        'pool was "policy", and is "other"',
        "set 'one': n was 1, and is 2",
        "set 'one': solved_at was 1.0, and is 0.5",
        "set 'one': sampling.top_p was 1.0, and is 0.9",
        "set 'one': limits.run_ms was 1800000, and is 5",
        "set 'one': row 't2' is gone",
        "set 'one': row 't0' has changed",
    ]
    with pytest.raises(ConfigurationError, match=r"holds another evaluation: pool was .*; and 2 more differences"):
        definition.check_same(again, now, tmp_path)
    (tmp_path / definition.FILE).write_text("{}")
    with pytest.raises(ConfigurationError, match="is not of an evaluation"):
        definition.read(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"sets": []}, {"n": 0}, {"tasks": []}, {"weight": -1}, {"weight": 0},
        {"set": "gone"}, {"groups": {"one.0-0": (3, 1)}}, {"groups": {"one.0-0": (-1, 1)}},
    ],
)  # fmt: skip
def test_a_definition_that_was_changed_by_hand_is_named_and_ends_in_no_traceback(
    write: Write, tmp_path: Path, change: dict[str, Any]
) -> None:
    kept = definition.define(load(write("limit = 3"), None), "policy", "r")
    batch = definition.Submitted(batch_id="one.0.0", set="one", round=0, groups={"one.0-0": (2, 1)})
    definition.write(tmp_path, msgspec.structs.replace(kept, submitted=[batch]))
    assert definition.read(tmp_path) is not None
    there = json.loads((tmp_path / definition.FILE).read_text())
    for place in (there, there["sets"][0], there["submitted"][0]):
        place.update({name: value for name, value in change.items() if name in place})
    (tmp_path / definition.FILE).write_text(json.dumps(there))
    with pytest.raises(ConfigurationError, match="is not of an evaluation"):
        definition.read(tmp_path)
