"""The CPUs of a sandbox where no control group shares CPU time out.

What runs inside cannot choose others. So a sandbox of RUN that starts programs without end slows its neighbours on a
few CPUs, and those of EVAL on none of the CPUs that are theirs alone.
"""

import os
import random
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from sandbox.lifetime.cgroup import ControlGroups
from sandbox.protocol import SandboxSpec

KEPT = 8  # one of so many is kept for EVAL, and one at least
SHARE = 4  # one of so many of the others is what a sandbox of RUN gets, and one at least


def cpus_of(spec: SandboxSpec, groups: ControlGroups | None, at_hand: Collection[int]) -> set[int]:
    """Those that a sandbox may use, of those that this process may; all where a group or nothing else can hold it."""
    shared_out = groups is not None and "cpu" in groups.directories
    if shared_out or spec.evaluates or len(at_hand) == 1:
        return set(at_hand)
    others = sorted(at_hand)[max(1, len(at_hand) // KEPT) :]
    first = random.randrange(len(others))  # noqa: S311 - not a secret
    return {others[(first + at) % len(others)] for at in range(max(1, len(others) // SHARE))}


@contextmanager
def on_cpus(spec: SandboxSpec, groups: ControlGroups | None) -> Iterator[None]:
    """Keeps what this thread starts meanwhile to a sandbox's CPUs."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus_of(spec, groups, own))
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)
