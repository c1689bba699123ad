"""The histories of many seeds, played by many processes."""

import atexit
import multiprocessing
import subprocess
from collections.abc import Iterator, Sequence

from tests.simulation.options import derive
from tests.simulation.replay import Outcome, play
from tests.simulation.server import Server

_SERVER: list[Server] = []  # of this process
TWICE = 50  # one seed of so many is played twice: its trace must be the same


def seeds(text: str) -> list[int]:
    """`7`, `1-500` or `1..500`, joined by commas."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.replace("..", "-").partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def simulate(task: tuple[int, frozenset[str]]) -> Outcome:
    """One seed in this process, whose server is started at its first."""
    if not _SERVER:
        _SERVER.append(Server())
        atexit.register(_SERVER[0].close)
    seed, kinds = task
    outcome = play(_SERVER[0], derive(seed, kinds))
    if seed % TWICE == 0 and (again := play(_SERVER[0], outcome.options)).digest != outcome.digest:
        raise RuntimeError(f"seed {seed} gave two histories: {outcome.digest} and {again.digest}")
    return outcome


def outcomes(tasks: Sequence[tuple[int, frozenset[str]]], jobs: int) -> Iterator[Outcome]:
    """In any order, from so many processes. A process ends after some histories, with what they left."""
    if jobs == 1:
        yield from map(simulate, tasks)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=200) as pool:
        yield from pool.imap_unordered(simulate, tasks)


def commit() -> str:
    """What numbers of seeds are valid for."""
    asked = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return asked.stdout.strip() or "unknown"
