"""The histories of many seeds, played by many processes."""

import atexit
import multiprocessing
import os
import subprocess
import time
from collections.abc import Iterator, Sequence

from tests.simulation.options import derive
from tests.simulation.replay import Outcome, play
from tests.simulation.server import Server

_SERVER: list[Server] = []  # of this process
TWICE = 50  # one seed of so many is played twice: its trace must be the same


def seeds(text: str) -> list[int]:
    """`500` is the first 500; ranges (`1-500`, `1..500`) and seeds joined by commas; `fresh:500` is 500 new ones."""
    if text.isdigit():
        return list(range(1, int(text) + 1))
    if text.startswith("fresh:"):
        now_ms = time.time_ns() // 1_000_000
        return list(range(now_ms, now_ms + int(text.removeprefix("fresh:"))))
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.replace("..", "-").partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def here() -> Server:
    """This process's server, started when it is first asked for."""
    if not _SERVER:
        _stay_on_one_core()
        _SERVER.append(Server())
        atexit.register(_SERVER[0].close)
    return _SERVER[0]


def simulate(task: tuple[int, frozenset[str]]) -> Outcome:
    """One seed in this process."""
    seed, kinds = task
    outcome = play(here(), derive(seed, kinds))
    if seed % TWICE == 0 and (again := play(here(), outcome.options)).digest != outcome.digest:
        raise RuntimeError(f"seed {seed} gave two histories: {outcome.digest} and {again.digest}")
    return outcome


def _stay_on_one_core() -> None:
    """A process of the pool and its server take turns: on one core neither waits for another core to wake up."""
    cores = sorted(os.sched_getaffinity(0))
    identity = multiprocessing.current_process()._identity
    if identity:
        os.sched_setaffinity(0, {cores[identity[0] % len(cores)]})


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
