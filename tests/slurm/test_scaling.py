"""How many tasks an array should have, decided from values alone."""

import math
from typing import Any

import pytest
from msgspec.structs import replace

from prorl_mq.schema.messages import Stage
from prorl_mq.store.gauges import Load
from prorl_mq.store.workers import WorkerStatus
from slurm import scaling
from slurm.demand import Demand
from slurm.report import notes
from slurm.scaling import Memory, ScalingPlan, decide, servers
from slurm.spec import Deployment
from slurm.spec_file import deployment
from slurm.tasks import SlurmTask, clock_s, limit_s


def one(kind: str = "run", scale: dict[str, int] | None = None, **about: Any) -> Deployment:
    array = {"kind": kind, "slots": 4, "count": 10, **about}
    return deployment({"name": "d", "shared": "/s", "arrays": {"a": array}, "scale": {"step": 100, **(scale or {})}})


def work(queued: int = 0, *, stage: Stage = Stage.RUN, oldest_s: float = 100.0, **more: Any) -> Demand:
    empty = Load(queued=0, held=0, oldest_s=0.0)
    stages = dict.fromkeys(Stage, empty) | {stage: Load(queued=queued, held=0, oldest_s=oldest_s)}
    return Demand(**{"backlog": 0, "stages": stages, "delayed": 0, "workers": (), **more})


def task(id_: str, state: str = "RUNNING", run_s: int = 500, node: str = "n1") -> SlurmTask:
    return SlurmTask(id=id_, deployment="d", job="a", state=state, node=node, run_s=run_s, left="", reason="")


def worker(task_id: str, *, busy: int = 0, slots: int = 4, restarts: int = 0, node: str = "n1") -> WorkerStatus:
    name = f"run-{task_id}.{restarts}@{node}-1"
    return WorkerStatus(name=name, stage=Stage.RUN, node=node, slots=slots, busy=busy, pid=1, started_ms=0)


def plan(
    found: Deployment, demand: Demand, *tasks: SlurmTask, memory: Memory | None = None, now_s: float = 0
) -> ScalingPlan:
    return decide(found, tasks, demand, {} if memory is None else memory, now_s)["a"]


@pytest.mark.parametrize(("queued", "tasks"), [(0, 0), (1, 1), (4, 1), (5, 2), (400, 10)])
def test_there_are_as_many_tasks_as_the_work_fills(queued: int, tasks: int) -> None:
    assert plan(one(), work(queued)).add == tasks


def test_what_waits_in_slurm_is_on_its_way_and_not_asked_for_again() -> None:
    assert plan(one(), work(40), task("1_0"), task("1_1", "PENDING"), task("1_2", "CONFIGURING")).add == 7


def test_what_slurm_holds_back_is_asked_for_again_but_not_without_end() -> None:
    held = [replace(task(f"1_{place}", "PENDING"), reason="JobHeldAdmin") for place in range(10)]
    assert plan(one(), work(40), *held[:1]).add == 10
    no_more = plan(one(), work(40), *held)
    assert (no_more.add, "Slurm holds 10 of its tasks back" in no_more.why) == (0, True)
    server_ = replace(server("1", "redis", "", "PENDING"), reason="JobHeldAdmin")
    assert servers(served(), [server_]) == {"redis": 1, "b": 3}
    assert servers(served(), [server_, replace(server_, id="2")]) == {"b": 3}


def test_a_draining_task_counts_no_more() -> None:
    demand = work(8, workers=(worker("1_0", slots=0, busy=3), worker("1_1")))
    assert plan(one(), demand, task("1_0"), task("1_1")).add == 1


def served(time: str = "04:00:00", count: int = 3) -> Deployment:
    backend = {"command": ["x"], "count": count, "time": time}
    return deployment({"name": "d", "shared": "/s", "redis": {"time": time}, "backends": {"b": backend}})


def server(id_: str, job: str, left: str, state: str = "RUNNING", run_s: int = 1) -> SlurmTask:
    return SlurmTask(id=id_, deployment="d", job=job, state=state, node="n1", run_s=run_s, left=left, reason="")


def test_servers_that_have_ended_are_asked_for_again_each_as_often_as_it_lacks() -> None:
    here = [server("1_0", "b", "3:00:00"), server("1_1", "b", "0:00", "TIMEOUT"), server("2_0", "b", "", "PENDING")]
    assert servers(served(), here) == {"redis": 1, "b": 1}


@pytest.mark.parametrize(
    ("time", "left", "asked"),
    [("04:00:00", "30:00", False), ("04:00:00", "23:59", True), ("20:00", "10:01", False), ("20:00", "9:59", True),
     ("1-00:00:00", "2:24:01", False), ("1-00:00:00", "2:23:59", True), ("UNLIMITED", "UNLIMITED", False),
     ("2:00", "0:59", True)],
)  # fmt: skip
def test_the_next_server_is_asked_for_before_the_limit_of_this_one(time: str, left: str, asked: bool) -> None:
    """Ten minutes or a tenth of its time before, and half of it at most."""
    run_s = 1 if limit_s(time) == math.inf else int(limit_s(time)) - (clock_s(left) or 0)
    here = [server("1", "redis", left, run_s=run_s), *(server(f"2_{n}", "b", left, run_s=run_s) for n in range(3))]
    assert servers(served(time), here) == ({"redis": 1, "b": 3} if asked else {})
    waiting = [server("3", "redis", "", "PENDING"), *(server(f"4_{place}", "b", "", "PENDING") for place in range(3))]
    assert servers(served(time), [*here, *waiting]) == {}


@pytest.mark.parametrize(
    ("time", "granted", "left", "asked"),
    [("1-00:00:00", 7200, "2:00:00", False), ("1-00:00:00", 7200, "12:01", False), ("1-00:00:00", 7200, "11:59", True),
     ("UNLIMITED", 43200, "12:00:00", False), ("UNLIMITED", 43200, "1:11:59", True), ("7-0", 120, "0:59", True)],
)  # fmt: skip
def test_the_time_before_the_limit_is_that_of_the_limit_which_slurm_has_given(
    time: str, granted: int, left: str, asked: bool
) -> None:
    """As after --time-min, or where a partition caps it. By the spec's limit each look would ask for another one."""
    here = [server("1", "redis", left, run_s=granted - (clock_s(left) or 0))]
    assert ("redis" in servers(served(time), here)) is asked


@pytest.mark.parametrize("capped", [True, False])
def test_of_a_server_there_are_twice_its_count_at_most(capped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever limits Slurm gives: here all of them end soon. The control has no cap: each look asks again."""
    monkeypatch.setattr(scaling, "SPARE", 2 if capped else 1000)
    here: list[SlurmTask] = []
    for _ in range(5):
        for name, count in servers(served("1-00:00:00"), here).items():
            here += [server(f"{len(here)}_{place}", name, "1:00", run_s=80_000) for place in range(count)]
    assert len(here) == (8 if capped else 20)


def test_a_server_that_fails_at_its_start_again_and_again_is_left_until_slurm_forgets_it() -> None:
    failed = [server(f"{number}", "redis", "0:00", "FAILED") for number in range(3)]
    assert servers(served(), failed) == {"b": 3}
    assert servers(served(), failed[:2]) == {"redis": 1, "b": 3}
    late = [replace(each, run_s=121) for each in failed]
    assert servers(served(), late) == {"redis": 1, "b": 3}, "it had run"
    several = [server(f"1_{number}", "b", "0:00", "FAILED") for number in range(8)]
    assert servers(served(), several) == {"redis": 1, "b": 3}, "of three at a time none has failed three times"
    assert servers(served(), [*several, server("2_0", "b", "0:00", "FAILED")]) == {"redis": 1}


def test_it_asks_in_steps() -> None:
    assert plan(one(scale={"step": 3}), work(400)).add == 3


def test_young_jobs_are_left_to_the_tasks_there_are() -> None:
    found = one(scale={"up_s": 30})
    assert plan(found, work(40, oldest_s=5.0), task("1_0")).add == 0
    assert plan(found, work(40, oldest_s=31.0), task("1_0")).add == 9
    assert plan(found, work(40, oldest_s=0.0)).add == 10, "where nobody is, nobody would come"


def test_it_shrinks_only_after_the_need_has_been_low_for_long() -> None:
    found, memory = one(scale={"down_s": 60}), {}
    tasks = (task("1_0"), task("1_1"))
    assert plan(found, work(4), *tasks, memory=memory, now_s=0).drain == ()
    assert plan(found, work(4), *tasks, memory=memory, now_s=59).drain == ()
    assert plan(found, work(8), *tasks, memory=memory, now_s=60).drain == ()
    assert plan(found, work(4), *tasks, memory=memory, now_s=61).drain == ()
    assert len(plan(found, work(4), *tasks, memory=memory, now_s=121).drain) == 1


def test_what_has_not_started_goes_first_and_then_the_idlest() -> None:
    found, memory = one(scale={"down_s": 0}), {"a": -1.0}
    demand = work(4, workers=(worker("1_0", busy=3), worker("1_1", busy=1), worker("1_2", busy=2)))
    tasks = (task("1_0"), task("1_1"), task("1_2"), task("1_3", "PENDING"))
    shrunk = plan(found, demand, *tasks, memory=memory)
    assert (shrunk.withdraw, shrunk.drain) == (("1_3",), ("1_1", "1_2"))


def test_bounds_hold_both_ways() -> None:
    assert plan(one(least=2), work(0)).add == 2
    assert plan(one(most=3), work(400)).add == 3
    found, memory = one(least=1, scale={"down_s": 0}), {"a": -1.0}
    assert len(plan(found, work(0), task("1_0"), task("1_1"), memory=memory).drain) == 1


def test_an_array_whose_tasks_all_fail_is_left_alone() -> None:
    failed = [task(f"1_{index}", "FAILED") for index in range(3)]
    held = plan(one(), work(40), *failed)
    assert held.add == 0
    assert "no more are requested" in held.why
    alive = work(40, workers=(worker("2_0"),))
    assert plan(one(), alive, *failed, task("2_0")).add == 9


@pytest.mark.parametrize("state", ["PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "TIMEOUT", "DEADLINE"])
def test_what_was_taken_from_tasks_is_asked_for_again(state: str) -> None:
    """Sites that cancel what they pre-empt show such ends of a whole array at once; a server may meet them, too."""
    taken = [task(f"1_{index}", state) for index in range(9)]
    assert plan(one(), work(40), *taken).add == 10
    assert servers(served(), [server(f"{number}", "redis", "0:00", state) for number in range(3)])["redis"] == 1


def test_a_node_task_counts_what_init_and_run_have_and_the_backlog() -> None:
    demand = work(4, backlog=5, delayed=3)
    assert plan(one("node"), demand).add == 3
    assert plan(one("init"), demand).add == 2
    assert plan(one("eval"), demand).add == 0


def test_two_arrays_of_a_kind_share_the_work_in_order() -> None:
    about = {"kind": "run", "slots": 4, "count": 2}
    found = deployment({"name": "d", "shared": "/s", "arrays": {"a": about, "b": about}})
    plans = decide(found, [], work(13), {}, 0.0)
    assert (plans["a"].add, plans["b"].add) == (2, 2)


def test_a_task_that_runs_twice_is_told_once_for_each_old_worker() -> None:
    seen = work(0, workers=(worker("1_0"), worker("1_0", restarts=1, node="n2")))
    [said] = notes(one(), [task("1_0", node="n2")], {}, seen)
    assert said == "1_0 runs twice: run-1_0.0@n1-1 is alive though Slurm has given it up; its commits are fenced"


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("TIMEOUT", "it reached its time limit"),
        ("NODE_FAIL", "its node failed"),
        ("PREEMPTED", "it was pre-empted"),
        ("OUT_OF_MEMORY", "it used more memory than it requested"),
        ("SPECIAL_EXIT", "it ended as SPECIAL_EXIT"),
    ],
)
def test_every_bad_end_has_its_sentence(state: str, said: str) -> None:
    [note] = notes(one(), [task("1_0", state)], {}, work())
    assert note.startswith(f"1_0 (a): {said}; its jobs continue elsewhere")
    assert notes(one(), [task("1_0", "COMPLETED"), task("1_1", "CANCELLED")], {}, work()) == []


def test_a_worker_whose_task_waits_again_is_named() -> None:
    seen = work(0, workers=(worker("1_0"),))
    [said] = notes(one(), [task("1_0", "PENDING")], {}, seen)
    assert said == "1_0 is to run again (PENDING), but run-1_0.0@n1-1 was alive a moment ago"


def test_a_node_task_with_one_worker_of_two_is_named_once_it_had_time() -> None:
    seen = work(0, workers=(worker("1_0"),))
    assert notes(one("node"), [task("1_0", run_s=10)], {}, seen) == []
    [said] = notes(one("node"), [task("1_0", run_s=500)], {}, seen)
    assert said.startswith("1_0 (a) has 1 of its 2 workers: see ")


def test_a_run_worker_of_many_slots_is_expected_as_several() -> None:
    seen = work(0, workers=(worker("1_0"),))
    [said] = notes(one("run", slots=700), [task("1_0", run_s=500)], {}, seen)
    assert said.startswith("1_0 (a) has 1 of its 3 workers: see ")
