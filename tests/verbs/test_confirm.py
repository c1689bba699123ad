"""confirm: what a worker was told to stop is dead, and the job ends as it was told to."""

import pytest

from prorl_mq.schema.items import Held, Stop
from prorl_mq.schema.lifecycle import Verb
from prorl_mq.schema.messages import Outcome, Stage
from prorl_mq.store.store import Store
from tests.support.queue import Queue, record
from tests.support.watch import Watch
from tests.verbs.fence import assert_fenced
from tests.verbs.places import GROUP, JOB, G, J

pytestmark = pytest.mark.anyio


async def stopping(queue: Queue, verb: Verb = Verb.CANCEL) -> None:
    job = await queue.snapshot(JOB)
    assert await queue.store.stop(verb, [Stop(JOB, b"", job.stream)]) == ["stopping"]


@pytest.mark.parametrize(("verb", "outcome"), [(Verb.CANCEL, "cancelled"), (Verb.EXPIRE, "expired")])
async def test_the_job_ends_and_its_reservation_is_given_back(
    queue: Queue, watch: Watch, verb: Verb, outcome: str
) -> None:
    held = await queue.hold(Stage.RUN)
    await stopping(queue, verb)
    await watch.look()
    assert await queue.store.confirm(held, record(JOB, Outcome(outcome)), "in 12 ms") == "confirmed"
    changed = await watch.changes()
    assert changed.pop(f"+ {G} t:0").endswith(f"{verb} run T2 w1; {outcome} run T2 w1 in 12 ms; ")
    assert changed.pop(f"- deadlines {JOB}", "<ms>") == "<ms>"
    assert changed == {
        f"+ {G} s:0": "<packed>",
        f"+ {J} outcome": outcome,
        "+ due#1": f"g={GROUP}",
        f"- {J} backend": "http://b1",
        "+ counters": "hash",
        f"+ counters jobs:{outcome}": "1",
        "- in_flight": "hash",
        "- in_flight acme:r": "1",
        f"- leases {JOB}": "<ms>",
        "- pending stage:run#1": "w1",
        "- stage:run#1": f"j={JOB}",
        f"{G} open": "1 → 0",
        f"{J} carry": "emptied",
        f"{J} commits": "… T2@w1",
        f"{J} entry": "emptied",
        f"{J} line": "emptied",
        f"{J} owner": "emptied",
        f"{J} state": "stopping → done",
        "pool:policy http://b1": "1 → 0",
    }


async def test_a_stopped_eval_gives_its_bytes_back(queue: Queue) -> None:
    held = await queue.hold(Stage.EVAL)
    await stopping(queue)
    assert await queue.store.confirm(held, record(JOB, Outcome.CANCELLED)) == "confirmed"
    assert await queue.command("GET", queue.keys.eval_bytes) == b"0"


@pytest.mark.parametrize("stage", list(Stage))
async def test_the_fence(queue: Queue, watch: Watch, stage: Stage) -> None:
    held = await queue.hold(stage)
    await stopping(queue)
    ended = record(JOB, Outcome.CANCELLED)

    async def confirm(store: Store, each: Held) -> list[str]:
        return [await store.confirm(each, ended)]

    await assert_fenced(queue, watch, held, confirm, done="confirmed")


async def test_a_job_that_nobody_told_to_stop_is_not_confirmed(queue: Queue, watch: Watch) -> None:
    held = await queue.hold(Stage.RUN)
    await watch.look()
    assert await queue.store.confirm(held, record(JOB, Outcome.CANCELLED)) == "leased"
    await watch.nothing_changed()
