"""Admission between tenants, runs and purposes: nobody starves, weights are kept, quotas hold, no room is left idle."""

import math
from collections import Counter
from collections.abc import Mapping
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from prorl_mq.rules.fair_share import Path, Quotas, share
from prorl_mq.schema.ids import GroupRef
from prorl_mq.schema.items import Wanted

HEADS = 32
LARGEST = 64
PATHS: list[Path] = [(t, r, p) for t in "abc" for r in "xyz" for p in ("eval", "train")]
sizes = st.integers(1, LARGEST)
rooms = st.lists(st.integers(1, 200), min_size=1, max_size=12)
weight = st.floats(0.01, 100.0)


def nodes(path: Path) -> list[Path]:
    return [path[:depth] for depth in (1, 2, 3)]


def groups(path: Path, counts: list[int], first: int = 0) -> list[Wanted]:
    return [Wanted(GroupRef(":".join(path) + f":{place}"), first, size, 1_000) for place, size in enumerate(counts)]


@st.composite
def backlogs(draw: st.DrawFn) -> dict[Path, list[Wanted]]:
    paths = draw(st.lists(st.sampled_from(PATHS), min_size=1, max_size=8, unique=True))
    return {
        path: groups(path, draw(st.lists(sizes, min_size=1, max_size=HEADS)), draw(st.sampled_from([0, 0, 8])))
        for path in paths
    }


def endless_of(size: int) -> list[int]:
    """More than any room here takes."""
    return [size] * (300 // size + 2)


@st.composite
def endless(draw: st.DrawFn) -> tuple[dict[Path, list[Wanted]], dict[Path, float]]:
    """Backlogs that never empty, each of groups of one size, with weights."""
    paths = draw(st.lists(st.sampled_from(PATHS), min_size=2, max_size=6, unique=True))
    weights = {node: draw(weight) for path in paths for node in nodes(path)}
    return {path: groups(path, endless_of(draw(sizes))) for path in paths}, weights


def amounts(chosen: Mapping[Path, list[Wanted]]) -> Counter[Path]:
    """Samples that each node has got."""
    got: Counter[Path] = Counter()
    for path, each in chosen.items():
        for node in nodes(path):
            got[node] += sum(group.wanted for group in each)
    return got


def largest(lines: Mapping[Path, list[Wanted]], node: Path) -> int:
    return max(group.wanted for path, each in lines.items() if path[: len(node)] == node for group in each)


@given(backlogs(), rooms)
def test_without_quotas_each_line_is_served_in_order_and_all_room_is_used_but_for_one_groups_excess(
    lines: dict[Path, list[Wanted]], many: list[int]
) -> None:
    had: dict[Path, float] = {}
    for room in many:
        chosen = share(lines, had, room, {}, Quotas())
        taken = [group.wanted for each in chosen.values() for group in each]
        waiting = sum(group.wanted for each in lines.values() for group in each)
        assert sum(taken) >= min(room, waiting)
        assert not taken or sum(taken) - max(taken) < room
        for path, each in chosen.items():
            assert each == lines[path][: len(each)]
            lines[path] = lines[path][len(each) :]


@settings(max_examples=60)
@given(endless(), st.lists(st.integers(1, 300), min_size=5, max_size=60), st.sampled_from([1, 2, 5, 1_000]))
def test_what_siblings_have_had_over_their_weights_never_differs_by_more_than_one_group(
    given_: tuple[dict[Path, list[Wanted]], dict[Path, float]], many: list[int], shown: int
) -> None:
    """So over time each gets its weight's share of the samples, at each of the three levels, for any weights.

    Also when only the first groups of each line are looked at.
    """
    lines, weights = given_
    front = {path: each[:shown] for path, each in lines.items()}
    had: dict[Path, float] = {}
    got: Counter[Path] = Counter()
    for room in many:
        got += amounts(share(front, had, room, weights, Quotas(), cut=front))
        there = {node for path in lines for node in nodes(path)}
        for one, other in combinations(sorted(there), 2):
            if one[:-1] == other[:-1]:
                apart = abs(got[one] / weights[one] - got[other] / weights[other])
                most = max(largest(lines, node) / weights[node] for node in (one, other))
                assert apart <= most * (1 + 1e-9)


def longest_wait(lines: Mapping[Path, list[Wanted]], weights: Mapping[Path, float], path: Path) -> float:
    """How many samples others may get while this line waits: at each level what its siblings may catch up by."""
    passing = 0.0
    for node in reversed(nodes(path)):
        others = {p[: len(node)] for p in lines if p[: len(node) - 1] == node[:-1]} - {node}
        for other in others:
            ahead = max(largest(lines, node) / weights[node], largest(lines, other) / weights[other])
            passing += weights[other] * (passing / weights[node] + ahead) + largest(lines, other)
    return passing


@settings(max_examples=40)
@given(endless(), st.integers(1, 100))
def test_nobody_waits_longer_than_the_bound_however_little_room_there_is(
    given_: tuple[dict[Path, list[Wanted]], dict[Path, float]], room: int
) -> None:
    """Between two groups of one line the others get a number of samples that the weights and sizes alone decide."""
    lines, drawn = given_
    weights = {node: min(4.0, max(0.25, each)) for node, each in drawn.items()}
    had: dict[Path, float] = {}
    waits = dict.fromkeys(lines, 0)
    bounds = {path: longest_wait(lines, weights, path) + room + LARGEST for path in lines}
    for _ in range(300):
        chosen = share(lines, had, room, weights, Quotas())
        total = amounts(chosen)
        used = sum(count for node, count in total.items() if len(node) == 1)
        waits = {path: 0 if path in chosen else wait + used for path, wait in waits.items()}
        assert all(waits[path] <= bounds[path] for path in lines)


@st.composite
def limits(draw: st.DrawFn) -> tuple[dict[Path, int], dict[Path, int]]:
    """Jobs in flight at most, of some tenants and runs; groups at most, of some runs."""
    owners = sorted({path[:depth] for path in PATHS for depth in (1, 2)})
    runs = [owner for owner in owners if len(owner) == 2]
    most = {owner: draw(st.integers(1, 150)) for owner in draw(st.sets(st.sampled_from(owners), max_size=5))}
    return most, {run: draw(st.integers(1, 6)) for run in draw(st.sets(st.sampled_from(runs), max_size=3))}


class Flight:
    """Jobs in flight and groups that are not acknowledged, as the service would count them."""

    def __init__(self, most: dict[Path, int], groups_most: dict[Path, int]) -> None:
        self.most, self.groups_most = most, groups_most
        self.flying: list[tuple[Path, Wanted]] = []
        self.unacked: Counter[Path] = Counter()

    def jobs(self, node: Path) -> int:
        return sum(group.wanted for path, group in self.flying if path[: len(node)] == node)

    def quotas(self) -> Quotas:
        return Quotas(
            most=self.most,
            jobs={node: most - self.jobs(node) for node, most in self.most.items()},
            groups={run: most - self.unacked[run] for run, most in self.groups_most.items()},
        )

    def depart(self, chosen: Mapping[Path, list[Wanted]]) -> None:
        for path, each in chosen.items():
            self.flying += [(path, group) for group in each]
            self.unacked[path[:2]] += sum(group.next == 0 for group in each)

    def land(self, count: int) -> None:
        """The oldest groups end and are acknowledged."""
        for path, group in self.flying[:count]:
            self.unacked[path[:2]] -= group.next == 0
        del self.flying[:count]


@given(backlogs(), limits(), st.lists(st.tuples(st.integers(1, 100), st.integers(0, 4)), min_size=1, max_size=25))
def test_quotas_are_never_exceeded_and_no_room_is_left_idle_while_somebody_may_go(
    lines: dict[Path, list[Wanted]],
    most: tuple[dict[Path, int], dict[Path, int]],
    steps: list[tuple[int, int]],
) -> None:
    flight, had = Flight(*most), dict[Path, float]()
    for room, landing in steps:
        chosen = share(lines, had, room, {}, flight.quotas())
        flight.depart(chosen)
        for path, each in chosen.items():
            lines[path] = lines[path][len(each) :]
        assert all(flight.jobs(node) <= limit for node, limit in flight.most.items())
        assert all(flight.unacked[run] <= limit for run, limit in flight.groups_most.items())
        if sum(group.wanted for each in chosen.values() for group in each) < room:
            assert not [path for path in lines if lines[path] and could_go(lines, flight, path)]
        flight.land(landing)


def could_go(lines: Mapping[Path, list[Wanted]], flight: Flight, path: Path) -> bool:
    """Its head fits everywhere, and so does every head that might have to go before it under the same quotas."""
    quotas = flight.quotas()
    if quotas.barrier(path, lines[path][0]) is not None:
        return False
    rivals = [lines[other][0] for other in lines if lines[other] and other[:1] == path[:1]]
    tightest = min((quotas.jobs.get(node, math.inf) for node in nodes(path)[:2]), default=math.inf)
    return all(rival.wanted <= tightest for rival in rivals)


@settings(max_examples=60)
@given(endless(), limits(), st.lists(st.integers(1, 3), min_size=200, max_size=200))
def test_no_quota_starves_anybody_whose_groups_fit_into_it(
    given_: tuple[dict[Path, list[Wanted]], dict[Path, float]],
    most: tuple[dict[Path, int], dict[Path, int]],
    landings: list[int],
) -> None:
    """Small groups would else always take what ends before there is place for a large one."""
    lines, _ = given_
    flight, had = Flight(*most), dict[Path, float]()
    quotas = flight.quotas()
    fitting = {path for path in lines if quotas.barrier(path, lines[path][0]) is None}
    served: Counter[Path] = Counter()
    for landing in landings:
        chosen = share(lines, had, 64, {}, flight.quotas())
        flight.depart(chosen)
        served.update(dict.fromkeys(chosen, 1))
        flight.land(landing)
    for _ in range(2_000):  # large groups need several to end
        if all(served[path] for path in fitting):
            break
        chosen = share(lines, had, 64, {}, flight.quotas())
        flight.depart(chosen)
        served.update(dict.fromkeys(chosen, 1))
        flight.land(1)
    assert all(served[path] for path in fitting)


@settings(max_examples=60)
@given(st.integers(1, 4), st.integers(1, 30), st.booleans())
def test_who_was_idle_or_held_by_a_quota_saves_nothing_up(others: int, room: int, held: bool) -> None:
    late: Path = ("a", "late", "train")
    busy: list[Path] = [("a", f"r{number}", "train") for number in range(others)]
    had: dict[Path, float] = {}
    lines = {path: groups(path, [1] * HEADS) for path in busy}
    waiting = lines | {late: groups(late, [1] * HEADS)}
    for _ in range(100):
        share(waiting if held else lines, had, room, {}, Quotas(groups={late[:2]: 0}))
    got: Counter[Path] = Counter()
    for _ in range(20):
        got += amounts(share(waiting, had, room, {}, Quotas()))
    assert got[late] <= max(got[path] for path in busy) + 1


@given(backlogs(), st.integers(1, 40))
def test_who_has_gone_for_long_is_forgotten(lines: dict[Path, list[Wanted]], room: int) -> None:
    had: dict[Path, float] = {}
    share(lines | {("z", "gone", "train"): groups(("z",), [LARGEST])}, had, 1 << 20, {}, Quotas())
    only = next(iter(lines))
    share({only: groups(only, [LARGEST * HEADS * len(PATHS)])}, had, room, {}, Quotas())
    assert set(had) == set(nodes(only))
