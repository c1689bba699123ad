"""The page `docs/reference/chaos.md`: written by the command, so that every figure is one that was measured.

python -m bench.chaos.page RESULTS... joins the results of several runs into one page.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.chaos.faults import KINDS
from bench.chaos.ours import LEASE_S, NAME, WORKERS, Row

ABOUT: Final = {
    "agl": "Agent Lightning's server",
    "verifiers": "verifiers' pool of environment workers",
}
TEMPLATE: Final = Path(__file__).with_suffix(".md")


def line(row: Row) -> str:
    """A row as the terminal shows it."""
    return (
        f"{row.system:10} {row.kind:22} jobs {row.jobs:6} faults {row.faults:3} lost {row.lost} "
        f"duplicated {row.duplicated} doubled {row.doubled} left {row.left_over} recovery {_recovery(row)}, "
        f"{row.seconds} s, load {row.load} {row.left or ''}{row.note}"
    )


def page(rows: Sequence[Row], machine: Mapping[str, Any]) -> str:
    """The whole page."""
    mine = [row for row in rows if row.system == NAME]
    others = [row for row in rows if row.system != NAME]
    loads = sorted(row.load for row in rows)
    return TEMPLATE.read_text().format(
        workers=WORKERS,
        lease=LEASE_S,
        machine=f"Measured on {machine['cores']} cores ({machine['cpu']}), Python {machine['python']}; load average "
        f"{loads[0]:.0f} to {loads[-1]:.0f}, as other work ran beside it.",
        ours="\n".join(f"| {row.kind} {_figures(row)}" for row in mine),
        jobs=sum(row.jobs for row in mine),
        faults=sum(row.faults for row in mine),
        lost=sum(row.lost for row in mine),
        duplicated=sum(row.duplicated for row in mine),
        left=sum(row.left_over for row in mine),
        kinds="\n".join(f"* **{kind.name}**: {kind.what}" for kind in KINDS),
        healed=120,
        gone=30,
        peers="\n".join(f"| {ABOUT.get(row.system, row.system)} | {row.kind} {_figures(row)}" for row in others),
    )


def _figures(row: Row) -> str:
    return (
        f"| {row.jobs:,} | {row.faults} | {row.lost} | {row.duplicated} | {row.doubled} | {row.left_over} "
        f"| {_recovery(row)} |"
    )


def _recovery(row: Row) -> str:
    shown = ["never" if each is None else f"{each:.1f}" for each in (row.recovery_median_s, row.recovery_worst_s)]
    return f"{shown[0]} / {shown[1]} s"


class Results(msgspec.Struct):
    """What a run wrote to `bench/out`."""

    machine: dict[str, Any]
    rounds: list[Row]


def main() -> int:
    found = [msgspec.json.decode(Path(name).read_bytes(), type=Results) for name in sys.argv[1:]]
    rows = [row for results in found for row in results.rounds]
    places = {kind.name: place for place, kind in enumerate(KINDS)}
    rows.sort(key=lambda row: places[row.kind] if row.system == NAME else len(places))
    print(page(rows, found[0].machine), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
