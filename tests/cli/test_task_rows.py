"""`prorl-mq task check`, as a person calls it: of files of rows, and of what is none."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
MAIN = "import sys; from prorl_mq.cli import main; sys.exit(main())"
TASKS = [json.loads(line) for line in (ROOT / "examples/swe/instances.jsonl").read_text().splitlines()]
PUBLISHED = TASKS[0]["payload"]


def check(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", MAIN, "task", "check", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)


def rows(path: Path, *given: Any) -> str:
    lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in given]
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return str(path)


def test_bad_rows_among_500_are_named_and_the_others_pass(tmp_path: Path) -> None:
    separators = {**PUBLISHED, "problem_statement": "one line\u2028two\x85three"}
    bad = {
        "[" * 5000: "read",
        json.dumps({**PUBLISHED, "FAIL_TO_PASS": "[broken"}): "row",
        json.dumps({"task_id": "", "data_source": "none", "payload": {}}): "read",
        json.dumps({"instance_id": "x"}): "schema",
    }
    file = rows(tmp_path / "rows.jsonl", *TASKS, separators, *bad, *[PUBLISHED] * (500 - len(TASKS) - 1 - len(bad)))
    table = check("--rows", file)
    assert table.returncode == 1
    assert table.stdout.endswith("496 of 500 rows pass\n")
    told = check("--rows", file, "--json")
    assert told.returncode == 1
    found = json.loads(told.stdout)
    first = len(TASKS) + 2
    assert [(each["line"], each["step"]) for each in found["faults"]] == list(enumerate(bad.values(), first))
    assert found["rows"] == 500
    assert "FAIL_TO_PASS" in found["faults"][1]["error"]


def test_a_hostile_row_writes_nothing_of_its_own_to_the_terminal_and_is_quoted_in_part(tmp_path: Path) -> None:
    row = {**PUBLISHED, "instance_id": "x\x1b[2J\n500 of 500 rows pass", "FAIL_TO_PASS": ["y" * 100_000]}
    told = check("--rows", rows(tmp_path / "rows.jsonl", row, {**row, "FAIL_TO_PASS": []}))
    assert told.returncode == 1
    assert "x\\u001b[2J\\n500 of 500 rows pass (line 1)" in told.stdout
    assert "\x1b" not in told.stdout
    assert len(told.stdout) < 5000


def test_rows_that_all_pass_and_a_file_without_any(tmp_path: Path) -> None:
    assert check("--rows", rows(tmp_path / "rows.jsonl", *TASKS)).returncode == 0
    nothing = check("--rows", rows(tmp_path / "none.jsonl", ""))
    assert nothing.returncode == 2
    assert "has no rows" in nothing.stderr


def test_what_is_no_task_family_is_told_with_what_to_do(tmp_path: Path) -> None:
    file = rows(tmp_path / "rows.jsonl", *TASKS)
    for given, said in (
        (file, f"check them with --rows {file}"),
        (str(tmp_path), "no directory in it has a task.toml"),
        ("my.json_tasks", "cannot be imported"),
        (f"{file}.json", "is no registry of data sets"),
    ):
        done = check(given)
        assert done.returncode == 2
        assert said in done.stderr
        assert "Traceback" not in done.stderr
