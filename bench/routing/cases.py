"""The simulations that are compared."""

import random
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.routing.engine import Costs
from bench.routing.policies import LeastLoaded, Room, RoundRobin, Sticky
from bench.routing.simulator import Disturbance, Simulation
from bench.routing.workload import BLOCK, MIXES, SLOW, Mix, Session, generated, recorded

RULES: Final = {"round robin": RoundRobin, "least loaded": LeastLoaded, "sticky": Sticky, "room": Room}
CAPS: Final = (90, 110, 130, 150, 170)
SLOTS: Final = (200, 400)
SEEDS: Final = 3
UNTIL_S, WARM_UP_S = 4_000.0, 1_500.0  # 400 sessions stay for 900 s: before, those that end are short ones
ADVERSE_S, ADVERSE_WARM_UP_S = 600.0, 200.0
SLOW_S, SLOW_WARM_UP_S, SLOW_SLOTS = 2_000.0, 700.0, 300
LONG_EVERY: Final = 5  # of so many of these traces one has long prompts that samples share
FIELDS: Final = ("tokens_s", "sessions_h", "hits", "worst_hits", "preempted", "length", "pace", "longest_wait_s")


class Case(NamedTuple):
    """One simulation."""

    name: str
    rule: str
    slots: int
    seed: int
    mix: Mix | None = None
    trace: Path | None = None
    disturbance: Disturbance | None = None
    until_s: float = UNTIL_S
    warm_up_s: float = WARM_UP_S


def simulate(case: Case) -> dict[str, Any]:
    """The figures of one case."""
    sessions: Iterator[Session]
    if case.trace is not None:
        block, found = recorded(case.trace)
        random.Random(case.seed).shuffle(found)
        sessions = (
            Session(f"{each.name}#{number}", each.group, each.steps, each.blocks)
            for number, each in enumerate(cycle(found))
        )
    else:
        block, sessions = BLOCK, generated(case.mix or Mix(), case.seed)
    made = Simulation(
        sessions,
        lambda engines: RULES[case.rule](case.rule, engines, case.slots, case.seed),
        costs=Costs(),
        block=block,
        disturbance=case.disturbance,
    )
    figures = made.run(case.until_s, case.warm_up_s)
    return {"case": case.name, "round": case.seed, **{field: getattr(figures, field) for field in FIELDS}}


def compared(name: str, seeds: int, mix: Mix | None, trace: Path | None) -> list[Case]:
    """Every rule and static cap on one kind of sessions."""
    cases = []
    for seed in range(seeds):
        for slots in SLOTS:
            cases += [Case(f"{name}: {rule}, {slots} slots", rule, slots, seed, mix, trace) for rule in RULES]
        cases += [Case(f"{name}: sticky, cap {cap}", "sticky", cap, seed, mix, trace) for cap in CAPS]
    return cases


def slow_tools() -> list[Case]:
    """Tools that work for minutes, with the rule and without."""
    return [
        Case(f"slow tools, {name}: {rule}", rule, SLOW_SLOTS, 0, mix, None, None, SLOW_S, SLOW_WARM_UP_S)
        for name, mix in SLOW.items()
        for rule in ("sticky", "room")
    ]


def adversaries(count: int) -> list[Case]:
    """Traces that are made to hurt: tools that answer together, caches that are lost, backends that are slow, and
    prompts that are most of a session.
    """
    cases, (*kinds, long) = [], MIXES
    for seed in range(count):
        source = random.Random(f"adversary {seed}")
        disturbance = Disturbance(
            tick_s=source.choice([0.0, 5.0, 20.0, 60.0]),
            restart_s=source.choice([0.0, 0.0, 120.0]),
            speeds=source.choice([(), (0.4,), (0.4, 0.7)]),
        )
        drawn = source.choice(kinds)
        mix = MIXES[long if seed % LONG_EVERY == 0 else drawn]
        slots = source.choice([150, 200, 300])
        cases += [
            Case(f"{rule}, trace {seed}", rule, slots, seed, mix, None, disturbance, ADVERSE_S, ADVERSE_WARM_UP_S)
            for rule in ("sticky", "room")
        ]
    return cases
