"""Runs the tests of all bridges and prints a table of them: `make test-bridges`."""

import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest


class Tested(NamedTuple):
    """`how`: run, its own code runs the bridge; parts, functions and types of its source do; read, its interface was
    rewritten from its source. `tests`: words of the names of the tests, one of which is in each; cases do not count.
    """

    project: str
    version: str
    how: str
    tests: tuple[str, ...]


TABLE = (
    Tested("verl", "0.9.1", "parts", ("test_verl.py", "verls_is")),
    Tested("VeRL-Tool", "source of June 2026", "read", ("verl_tool",)),
    Tested("SkyRL", "0.4.0", "parts", ("test_skyrl.py", "skyrls_extras")),
    Tested("TRL", "1.16.0", "run", ("test_trl.py", "trl")),
    Tested("Agent Lightning", "1.0.2", "run", ("test_agent_lightning.py",)),
    Tested("verifiers", "0.4.0", "run", ("test_verifiers.py",)),
    Tested("prime-rl", "source of August 2026", "read", ("branches",)),
    Tested("NeMo Gym", "0.7.0", "parts", ("nemo_gym", "gyms")),
    Tested("NeMo RL", "source of August 2026", "read", ("nemo_rl",)),
    Tested("rLLM", "source of August 2026", "read", ("test_rllm.py",)),
    Tested("slime, miles", "source of August 2026", "read", ("slime",)),
    Tested("AReaL", "1.0.4", "parts", ("an_episode_is_one_sequence", "areals_is")),
)


class Results:
    """Counts outcomes of tests by row of the table."""

    def __init__(self) -> None:
        self.found = [Counter[str]() for _ in TABLE]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            name = report.nodeid.partition("[")[0]
            for row, counts in zip(TABLE, self.found, strict=True):
                counts[report.outcome] += any(word in name for word in row.tests)

    def lines(self) -> list[str]:
        made = ["| project | version | how | result |", "|---|---|---|---|"]
        for row, counts in zip(TABLE, self.found, strict=True):
            told = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()) if count) or "no test"
            made.append(f"| {row.project} | {row.version} | {row.how} | {told} |")
        return made


def main() -> int:
    results, here = Results(), Path(__file__).parent
    beside = here.parent / "converters"
    code = pytest.main(["-q", "-p", "no:randomly", str(here), str(beside), *sys.argv[1:]], plugins=[results])
    print("\n".join(results.lines()))
    return int(code) or any(not counts["passed"] or counts["skipped"] for counts in results.found)


if __name__ == "__main__":
    sys.exit(main())
