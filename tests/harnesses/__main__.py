"""Runs the tests of all harnesses and prints their figures as a table: `make test-harnesses`."""

import os
import re
import sys
from pathlib import Path
from typing import Any, Final

import pytest

HERE: Final = Path(__file__).parent
VERSIONS: Final = dict(line.split() for line in (HERE.parents[1] / "ops/harnesses/versions").read_text().splitlines())
CASES: Final = {
    "test_its_tools_work_and_its_conversation_is_one_row": "calls and an answer",
    "test_its_sub_agents_are_rows_of_their_own": "two sub-agents at once",
    "test_its_compaction_is_recorded_where_it_was_written": "a compaction",
    "test_an_answer_that_breaks_off_is_asked_for_again": "an answer that breaks off",
    "test_a_limit_ends_it": "a limit",
    "test_a_refused_call_never_runs_and_a_secret_never_reaches_the_policy": "a refused call",
}


class Table:
    """A line for each case of a harness; figures of one kind of sandbox that differ from another's are a line, too."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, ...], list[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        found = re.search(r"::(\w+)\[(\w+)-(.+)\]$", report.nodeid)
        if report.when == "call" and found is not None and found[1] in CASES:
            told: Any = dict(report.user_properties).get("figures", ["-"] * 4)
            figures = map(str, told)
            line = (f"{found[3]} {VERSIONS[found[3]]}", CASES[found[1]], report.outcome, *figures)
            self._seconds.setdefault(line, []).append(f"{found[2]} {report.duration:.0f} s")

    def lines(self) -> list[str]:
        made = [
            "| harness | case | result | calls | sampled | trained | rows | sandbox |",
            "|---|---|---|---|---|---|---|---|",
        ]
        return made + [f"| {' | '.join(line)} | {', '.join(kinds)} |" for line, kinds in sorted(self._seconds.items())]


def main() -> int:
    os.environ.setdefault("PRORL_HARNESSES", " ".join(VERSIONS))
    table, beside = Table(), HERE.parent / "external/test_mini_swe_agent.py"
    code = pytest.main(["-q", "-p", "no:randomly", str(HERE), str(beside), *sys.argv[1:]], plugins=[table])
    print("\n".join(table.lines()))
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
