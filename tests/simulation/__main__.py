"""`python -m tests.simulation --seeds 1-500 --jobs 2`: the histories of many seeds. Exit status 1 on any finding."""

import argparse
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence

from tests.simulation.checks import checks
from tests.simulation.found import FOUND
from tests.simulation.many import commit, here, outcomes, seeds
from tests.simulation.mutants import covering, hunt
from tests.simulation.options import DEFAULT
from tests.simulation.replay import report


def _hunt(files: Sequence[str], tried: Sequence[int], jobs: int) -> int:
    """A table of what finds the removal of each check: a seed's history, a test of its verb, or a check beside it."""
    left = [check for check in checks() if not files or check.file in files]
    hints = {FOUND.seed[check.name]: None for check in left if check.name in FOUND.seed}
    for check, seed, what in hunt(left, [*hints, *tried], jobs):
        left.remove(check)
        print(f"| `{check}` | seed {seed} | {what[:100]} |", flush=True)
    for check in list(left):
        tests = FOUND.test.get(check.name, f"test_{check.file}.py")
        if _tests_fail(tests, [check.name]):
            left.remove(check)
            print(f"| `{check}` | `{tests}` | fails |", flush=True)
    for check in list(left):
        partner = FOUND.covered.get(check.name)
        if partner is not None and _tests_fail(partner.tests, [check.name, *partner.checks]):
            left.remove(check)
            print(f"| `{check}` | covered by {partner.checks} | without both `{partner.tests}` fails |", flush=True)
    for check in list(left):
        other = next(covering(here(), check, tried), None)
        by = f"covered by `{other.check}`: seed {other.seed}, {other.what[:100]}" if other else "not found"
        print(f"| `{check}` | {by} | |", flush=True)
        if other:
            left.remove(check)
    return 1 if left else 0


def _tests_fail(tests: str, names: Sequence[str]) -> bool:
    """Whether tests of verbs notice that checks are taken out."""
    without = [word for name in names for word in ("--without", name)]
    argv = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:xdist", "-p", "tests.simulation.without", *without]
    return subprocess.run([*argv, f"tests/verbs/{tests}"], capture_output=True, check=False).returncode == 1


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", default="500")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default="", help="these kinds alone")
    parser.add_argument("--digest", action="store_true", help="print seed and digest of each history")
    parser.add_argument("--mutants", help="take checks out of these scripts, joined by commas, or all, one at a time")
    given = parser.parse_args(argv)
    if given.mutants:
        files = [] if given.mutants == "all" else given.mutants.split(",")
        return _hunt(files, seeds(given.seeds), given.jobs)
    kinds = frozenset(given.only.split(",")) if given.only else DEFAULT
    began, counts, found, played, calls, rollouts = time.monotonic(), Counter[str](), 0, 0, 0, 0
    for outcome in outcomes([(seed, kinds) for seed in seeds(given.seeds)], given.jobs):
        played, calls, rollouts = played + 1, calls + outcome.calls, rollouts + outcome.jobs
        counts += outcome.counts
        if given.digest:
            print(outcome.options.seed, outcome.digest)
        if outcome.findings:
            found += 1
            print(report(outcome, commit()), flush=True)
    took = time.monotonic() - began
    if not given.digest:
        print("\n".join(f"{count:8} {what}" for what, count in sorted(counts.items())))
        speed = f"{rollouts / took * 60:.0f} jobs a minute"
        print(f"{played} histories, {found} with findings, {rollouts} jobs, {calls} calls in {took:.1f} s: {speed}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
