"""reap: the verbs reap and evacuate. Jobs whose worker or lane is gone are taken back under another token."""

from typing import Any

import pytest

from prorl_mq.duties.reap import decide
from prorl_mq.schema.codec import decode
from prorl_mq.schema.items import Advance, Reap
from prorl_mq.schema.lifecycle import State, Verb
from prorl_mq.schema.messages import Limits, Outcome, SampleRecord, Stage
from prorl_mq.service.cancel import cancel
from tests.support.queue import POOL, Queue, count_of, spec
from tests.support.watch import Watch
from tests.verbs.places import GROUP, JOB, G, J

pytestmark = pytest.mark.anyio

ONE_DEATH = Limits(max_deaths=1)


async def reap(queue: Queue, *, leased: bool = True, limits: Limits | None = None) -> str:
    """As the reaping loop does it."""
    state, item = decide(await queue.snapshot(JOB), spec(limits=limits or Limits()), leased=leased)
    [answer] = await queue.worker("m").store.reap(Verb.REAP, state, [item])
    return answer


async def test_a_run_whose_lease_is_over_goes_back_to_init_under_another_token(queue: Queue, watch: Watch) -> None:
    await queue.hold(Stage.RUN)
    await queue.overdue(JOB)
    await watch.look()
    assert await reap(queue) == "requeued"
    assert await watch.changes() == {
        "+ counters": "hash",
        "+ counters reclaims:reap": "1",
        f"+ {J} deaths": "1",
        "+ stage:init#1": f"j={JOB}",
        f"- {J} backend": "http://b1",
        f"- leases {JOB}": "1",
        "- pending stage:run#1": "w1",
        "- stage:run#1": f"j={JOB}",
        f"{J} entry": "stage:run#1 → stage:init#1",
        f"{J} line": "… reap init T2 m;",
        f"{J} owner": "emptied",
        f"{J} stage": "run → init",
        f"{J} state": "leased → queued",
        f"{J} stream": "stage:run → stage:init",
        f"{J} token": "T2 → T3",
        "pool:policy http://b1": "1 → 0",
    }


@pytest.mark.parametrize("stage", [Stage.INIT, Stage.EVAL])
async def test_init_and_eval_are_tried_again_where_they_were(queue: Queue, stage: Stage) -> None:
    held = await queue.hold(stage)
    await queue.overdue(JOB)
    assert await reap(queue) == "requeued"
    [again] = await queue.take(stage)
    assert count_of(again.token) > count_of(held.token)
    assert await queue.finish(held) == "stale"
    assert await queue.finish(again) == "finished"


async def test_a_lease_that_was_renewed_meanwhile_holds(queue: Queue, watch: Watch) -> None:
    await queue.hold(Stage.RUN)
    await watch.look()
    assert await reap(queue) == "held"
    await watch.nothing_changed()


async def test_a_job_under_which_too_many_workers_died_ends(queue: Queue, watch: Watch) -> None:
    await queue.hold(Stage.EVAL)
    trajectory = (await queue.snapshot(JOB)).trajectory
    await queue.overdue(JOB)
    await watch.look()
    assert await reap(queue, limits=ONE_DEATH) == "ended"
    changed = await watch.changes()
    assert changed.pop(f"+ {G} t:0").endswith("reap eval T3 m infra_error; ")
    assert changed == {
        f"+ {G} s:0": "<packed>",
        f"+ {J} outcome": "infra_error",
        "+ due#1": f"g={GROUP}",
        f"- deadlines {JOB}": "<ms>",
        "+ counters": "hash",
        "+ counters jobs:infra_error": "1",
        "+ counters reclaims:reap": "1",
        "- in_flight": "hash",
        "- in_flight acme:r": "1",
        f"- leases {JOB}": "1",
        "- pending stage:eval#1": "w1",
        "- stage:eval#1": f"j={JOB}",
        "bytes:eval value": "100 → 0",
        f"{G} open": "1 → 0",
        f"{J} carry": "emptied",
        f"{J} entry": "emptied",
        f"{J} line": "emptied",
        f"{J} owner": "emptied",
        f"{J} state": "leased → done",
    }
    packed = await queue.command("HGET", queue.keys.group(GROUP), "s:0")
    ended = decode(packed, SampleRecord)
    assert (ended.reward, ended.trajectory) == (None, trajectory)


async def test_a_stopping_job_whose_worker_is_gone_ends_as_it_was_told_to(queue: Queue) -> None:
    await queue.hold(Stage.RUN)
    await cancel(queue.store, "job", JOB)
    await queue.overdue(JOB)
    assert await reap(queue) == "ended"
    assert await queue.load() == 0
    packed = await queue.command("HGET", queue.keys.group(GROUP), "s:0")
    assert decode(packed, SampleRecord).outcome is Outcome.CANCELLED


async def test_an_entry_read_and_never_claimed_is_put_anew_and_costs_a_death(queue: Queue, watch: Watch) -> None:
    await queue.admitted()
    await queue.read(Stage.INIT)
    await watch.look()
    assert await reap(queue, leased=False) == "requeued"
    assert await watch.changes() == {
        "+ counters": "hash",
        "+ counters reclaims:reap": "1",
        f"+ {J} deaths": "1",
        f"+ {J} owner": "",
        "+ stage:init#2": f"j={JOB}",
        "- pending stage:init#1": "w1",
        "- stage:init#1": f"j={JOB}",
        f"{J} entry": "stage:init#1 → stage:init#2",
        f"{J} line": "… reap init T1 m;",
        f"{J} token": "T1 → T2",
    }


async def test_an_entry_of_a_lane_never_claimed_stays_on_its_lane(queue: Queue) -> None:
    """The job's sandbox lives on that node and is clean: no other node could continue with it."""
    held = await queue.hold(Stage.INIT)
    await queue.store.advance([Advance(held, "n1", b"c")])
    await queue.read(Stage.RUN, "n1")
    assert await reap(queue, leased=False) == "requeued"
    assert (await queue.snapshot(JOB)).stream == queue.keys.stage(Stage.RUN, "n1")


async def test_a_lane_without_a_node_is_evacuated_to_init(queue: Queue, watch: Watch) -> None:
    held = await queue.hold(Stage.INIT)
    await queue.store.advance([Advance(held, "n1", b"c")])
    job = await queue.snapshot(JOB)
    item = Reap(JOB, job.token, job.entry, job.stream, Stage.INIT, POOL, unread=True, deaths=0)
    await watch.look()
    assert await queue.store.reap(Verb.EVACUATE, State.QUEUED, [item]) == ["requeued"]
    changed = await watch.changes()
    assert changed[f"{J} line"] == "… evacuate init T2 w1;"
    assert changed[f"{J} stream"] == "stage:run@n1 → stage:init"
    assert changed["- stage:run@n1#1"] == changed["+ stage:init#1"] == f"j={JOB}"
    assert await queue.store.reap(Verb.EVACUATE, State.QUEUED, [item]) == ["stale"]
    await watch.nothing_changed()


@pytest.mark.parametrize("wrong", [{"token": "1"}, {"entry": "1-1"}, {"stream": "elsewhere"}])
async def test_a_job_that_has_moved_since_it_was_seen_is_left_alone(
    queue: Queue, watch: Watch, wrong: dict[str, Any]
) -> None:
    await queue.hold(Stage.RUN)
    await queue.overdue(JOB)
    state, item = decide(await queue.snapshot(JOB), spec(), leased=True)
    await watch.look()
    assert await queue.store.reap(Verb.REAP, state, [item._replace(**wrong)]) == ["stale"]
    await watch.nothing_changed()


async def test_a_repeat_changes_nothing(queue: Queue, watch: Watch) -> None:
    await queue.hold(Stage.RUN)
    await queue.overdue(JOB)
    state, item = decide(await queue.snapshot(JOB), spec(), leased=True)
    assert await queue.store.reap(Verb.REAP, state, [item]) == ["requeued"]
    await watch.look()
    assert await queue.store.reap(Verb.REAP, state, [item]) == ["stale"]
    await watch.nothing_changed()


async def test_a_lease_without_a_job_is_removed(queue: Queue, watch: Watch) -> None:
    await watch.look()
    await queue.command("ZADD", queue.keys.leases, 1, JOB)
    item = Reap(JOB, "1", "1-1", queue.keys.stage(Stage.INIT), Stage.INIT, POOL)
    assert await queue.store.reap(Verb.REAP, State.QUEUED, [item]) == ["gone"]
    await watch.nothing_changed()
