"""Runs the history of a seed, once or often, and says what it did."""

import contextlib
import functools
import gc
import logging
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.simulation.faults import Fault
from tests.simulation.options import Finding, Options
from tests.simulation.server import Server
from tests.simulation.world import World


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one history did."""

    options: Options
    faults: Sequence[Fault]
    findings: Sequence[Finding]
    digest: str  # of every call with its time and its reply
    calls: int
    jobs: int
    virtual_s: float
    real_s: float
    counts: Counter[str]  # words of scripts and kinds of faults
    trace: Sequence[str]  # its last calls


def play(server: Server, options: Options, faults: list[Fault] | None = None) -> Outcome:
    """One history from the beginning to its end."""
    began = time.monotonic()
    with no_collection():
        world = World(server, options, faults)
        findings = world.play()
        network = world.network
        outcome = Outcome(
            options=options,
            faults=world.faults,
            findings=findings,
            digest=network.digest,
            calls=network.calls,
            jobs=options.jobs,
            virtual_s=world.loop.time(),
            real_s=time.monotonic() - began,
            counts=network.counts,
            trace=network.last(200) if findings else [],
        )
        network.forget()
        del world, network
    return outcome


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """The collector runs between histories alone: what it frees of killed processes runs their `finally`. It leaves out
    what was there before the first one: the modules.
    """
    before, sys.unraisablehook = sys.unraisablehook, lambda _: None
    gc.disable()
    _leave_modules_out()
    try:
        yield
    finally:
        logging.disable()  # of what ends now, in a loop that is closed
        gc.collect()
        logging.disable(logging.NOTSET)
        gc.enable()
        sys.unraisablehook = before


@functools.cache
def _leave_modules_out() -> None:
    gc.collect()
    gc.freeze()


def report(outcome: Outcome, commit: str = "") -> str:
    """Everything that is needed to see a finding again."""
    lines = [f"seed {outcome.options.seed}  commit {commit}", f"options {outcome.options}", "faults:"]
    lines += [f"  {each}" for each in outcome.faults]
    lines += ["findings:", *(f"  {each}" for each in outcome.findings), "last calls:"]
    lines += [f"  {each}" for each in outcome.trace]
    return "\n".join(lines)
