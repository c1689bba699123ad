"""`python -m tests.simulation --seeds 1-500 --jobs 2`: the histories of many seeds. Exit status 1 on any finding."""

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence

from tests.simulation.many import commit, outcomes, seeds
from tests.simulation.mutants import hunt, mutants
from tests.simulation.options import ASKED_FOR, DEFAULT
from tests.simulation.replay import report
from tests.simulation.server import Server


def _hunt(names: Sequence[str], tried: Sequence[int]) -> int:
    """A table of which seed finds the removal of which check."""
    server, left = Server(), [mutant for name in names for mutant in mutants(name)]
    for mutant, seed, what in hunt(server, left, tried):
        print(f"| `{mutant}` | {seed} | {what[:100]} |", flush=True)
    for mutant in left:
        print(f"| `{mutant}` | not found |")
    server.close()
    return 1 if left else 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", default="1-100")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--kinds", default="", help=f"more kinds of faults: {', '.join(sorted(ASKED_FOR))}, or all")
    parser.add_argument("--only", default="", help="these kinds alone")
    parser.add_argument("--digest", action="store_true", help="print seed and digest of each history")
    parser.add_argument(
        "--mutants", default="", help="take checks out of these scripts, joined by commas, one at a time"
    )
    given = parser.parse_args(argv)
    if given.mutants:
        return _hunt(given.mutants.split(","), seeds(given.seeds))
    asked = frozenset(part for part in given.kinds.split(",") if part)
    kinds = DEFAULT | (ASKED_FOR if asked == {"all"} else asked)
    if given.only:
        kinds = frozenset(given.only.split(","))
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
