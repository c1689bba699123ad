"""Admission between runs: nobody starves, and everybody gets what their weight says."""

import math
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from prorl_mq.ids import GroupRef, RunRef
from prorl_mq.maintenance.admission import HEADS, QUANTUM, share
from prorl_mq.moves import Wanted

LARGEST = 64
RUNS = [RunRef(f"t:{name}") for name in "abcde"]
sizes = st.lists(st.integers(1, LARGEST), min_size=0, max_size=HEADS)
heads = st.dictionaries(st.sampled_from(RUNS), sizes, min_size=1)
rooms = st.integers(1, 40)
weights = st.floats(0.25, 4.0)


def groups(run: RunRef, counts: list[int]) -> list[Wanted]:
    return [Wanted(GroupRef(f"{run}:{place}"), 0, count, 1_000) for place, count in enumerate(counts)]


@given(heads, st.lists(rooms, min_size=1, max_size=20))
def test_each_run_is_served_in_order_and_the_room_is_used_and_not_exceeded_by_more_than_one_group(
    counts: dict[RunRef, list[int]], many: list[int]
) -> None:
    queues = {run: groups(run, each) for run, each in counts.items()}
    deficits: dict[RunRef, float] = {}
    for room in many:
        chosen = share(queues, deficits, room)
        taken = [group for each in chosen.values() for group in each]
        waiting = sum(group.wanted for queue in queues.values() for group in queue)
        used = sum(group.wanted for group in taken)
        assert used >= min(room, waiting)
        assert not taken or used - max(group.wanted for group in taken) < room
        for run, each in chosen.items():
            assert each == queues[run][: len(each)]
            queues[run] = queues[run][len(each) :]


@given(st.lists(st.integers(1, LARGEST), min_size=2, max_size=5), rooms)
def test_no_run_starves_however_little_room_there_is_at_a_time(group_sizes: list[int], room: int) -> None:
    """Every backlog is endless; between two groups of one run the others get a bounded number of samples."""
    deficits: dict[RunRef, float] = {}
    waits = dict.fromkeys(RUNS[: len(group_sizes)], 0)
    rounds = math.ceil(max(group_sizes) / QUANTUM)  # until a run's credit pays for its group
    bound = len(waits) * (rounds * QUANTUM + 2 * max(group_sizes))
    queues = {run: groups(run, [size] * HEADS) for run, size in zip(waits, group_sizes, strict=True)}
    total = 0
    while total < 3 * bound:
        for run, each in share(queues, deficits, room).items():
            used = sum(group.wanted for group in each)
            total += used
            waits = {other: 0 if other == run else wait + used for other, wait in waits.items()}
        assert max(waits.values()) <= bound


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(1, 16), weights), min_size=2, max_size=5), st.integers(1, 30))
def test_over_time_each_run_gets_its_weights_share_of_the_samples(about: list[tuple[int, float]], room: int) -> None:
    deficits: dict[RunRef, float] = {}
    runs = RUNS[: len(about)]
    heavy = {run: weight for run, (_, weight) in zip(runs, about, strict=True)}
    got: Counter[RunRef] = Counter()
    queues = {run: groups(run, [size] * HEADS) for run, (size, _) in zip(runs, about, strict=True)}
    while got.total() < 5_000:
        for run, each in share(queues, deficits, room, heavy).items():
            got[run] += sum(group.wanted for group in each)
    per_weight = [got[run] / heavy[run] for run in runs]
    assert max(per_weight) - min(per_weight) <= 0.02 * max(per_weight) + 2 * (QUANTUM + 16) / min(heavy.values())


@settings(max_examples=30)
@given(st.integers(2, 5), st.integers(1, 30))
def test_a_run_that_was_idle_saves_nothing_up(others: int, room: int) -> None:
    deficits: dict[RunRef, float] = {}
    late, busy = RUNS[0], RUNS[1 : 1 + others]
    queues = {run: groups(run, [1] * HEADS) for run in busy}
    for _ in range(100):
        share(queues, deficits, room)
    assert late not in deficits
    got: Counter[RunRef] = Counter()
    queues = {run: groups(run, [1] * HEADS) for run in (late, *busy)}
    for _ in range(40 * QUANTUM):
        chosen = share(queues, deficits, room)
        got.update({run: len(each) for run, each in chosen.items()})
    assert got[late] <= max(got[run] for run in busy) + 2 * QUANTUM


@given(heads, rooms)
def test_runs_that_have_gone_leave_nothing_behind(counts: dict[RunRef, list[int]], room: int) -> None:
    deficits = {RunRef("t:gone"): 100.0}
    share({run: groups(run, each) for run, each in counts.items()}, deficits, room)
    assert set(deficits) <= set(counts)
