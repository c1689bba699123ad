"""The Slurm task that a worker belongs to, as its name says."""

import re
from typing import Final, NamedTuple

NAME: Final = re.compile(r"(?P<stage>[a-z]+)-(?P<task>\d+(_\d+)?)\.(?P<restarts>\d+)@(?P<node>.+)-(?P<pid>\d+)")


class Member(NamedTuple):
    """A run of a task; one that runs again after a restart counts one higher."""

    task: str
    restarts: int


def task_of(worker: str) -> Member | None:
    """None for a worker that Slurm did not start.

    >>> task_of("run-17_3.1@n2-4711"), task_of("run-laptop-4711")
    (Member(task='17_3', restarts=1), None)
    """
    match = NAME.fullmatch(worker)
    return Member(match["task"], int(match["restarts"])) if match else None
