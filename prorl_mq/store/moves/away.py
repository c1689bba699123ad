"""Runs of another cell: how a script refuses to write to one, and the error that says where it is."""

from typing import Final

from prorl_mq.errors import RunArriving, RunMoved
from prorl_mq.schema.ids import RunRef, public

AWAY: Final = "AWAY"  # how the error begins with which a script refuses to write to such a run
ARRIVING: Final = "arriving"


def elsewhere(run: RunRef, way: str, cell: str) -> RunMoved | RunArriving:
    """The error for a run that has left or gone to a cell, or is arriving from it."""
    name = public(run)
    if way == ARRIVING:
        return RunArriving(f"run {name!r} is on its way here from cell {cell}: try again")
    return RunMoved(f"run {name!r} is in cell {cell}: ask that cell, or the router of all cells", cell=cell)
