"""advance: a stage is committed and the job stands on the next one."""

import pytest

from prorl_mq.schema.items import Advance
from prorl_mq.schema.messages import Stage
from prorl_mq.store.store import Store
from tests.support.queue import Queue
from tests.support.watch import Watch
from tests.verbs.fence import assert_fenced
from tests.verbs.places import JOB, J

pytestmark = pytest.mark.anyio


async def test_init_hands_on_to_a_nodes_lane(queue: Queue, watch: Watch) -> None:
    held = await queue.hold(Stage.INIT)
    await watch.look()
    assert await queue.store.advance([Advance(held, "n1", b"carry")]) == ["advanced"]
    assert await watch.changes() == {
        f"+ {J} carry": "carry",
        f"+ {J} commits": "T1@w1 ",
        f"+ {J} made": "T1",
        "+ stage:run@n1#1": f"j={JOB}",
        f"- leases {JOB}": "<ms>",
        "- pending stage:init#1": "w1",
        "- stage:init#1": f"j={JOB}",
        f"{J} entry": "stage:init#1 → stage:run@n1#1",
        f"{J} line": "… advance run T1 w1;",
        f"{J} owner": "emptied",
        f"{J} stage": "init → run",
        f"{J} state": "leased → queued",
        f"{J} token": "T1 → T2",
        f"{J} stream": "stage:init → stage:run@n1",
    }


async def test_leaving_run_gives_the_backend_back_keeps_the_trajectory_and_counts_the_bytes(
    queue: Queue, watch: Watch
) -> None:
    held = await queue.hold(Stage.RUN)
    blob = await queue.blob(held)
    await watch.look()
    assert await queue.store.advance([Advance(held, None, b"carry", blob, 100)]) == ["advanced"]
    short = blob.removeprefix(queue.keys.prefix).replace(held.token, "T2")
    assert await watch.changes() == {
        f"+ {J} bytes": "100",
        f"+ {J} trajectory": short,
        "+ bytes:eval": "string",
        "+ bytes:eval value": "100",
        "+ stage:eval#1": f"j={JOB}",
        f"- {J} backend": "http://b1",
        f"- {short} ttl": "yes",
        f"- leases {JOB}": "<ms>",
        "- pending stage:run#1": "w1",
        "- stage:run#1": f"j={JOB}",
        f"{J} carry": "from init → carry",
        f"{J} commits": "… T2@w1",
        f"{J} entry": "stage:run#1 → stage:eval#1",
        f"{J} line": "… advance eval T2 w1;",
        f"{J} made": "T1 → T2",
        f"{J} owner": "emptied",
        f"{J} stage": "run → eval",
        f"{J} state": "leased → queued",
        f"{J} token": "T2 → T3",
        f"{J} stream": "stage:run → stage:eval",
        "pool:policy http://b1": "1 → 0",
    }


@pytest.mark.parametrize("stage", [Stage.INIT, Stage.RUN])
async def test_the_fence(queue: Queue, watch: Watch, stage: Stage) -> None:
    held = await queue.hold(stage)
    await assert_fenced(
        queue, watch, held, lambda store, each: store.advance([Advance(each, None, b"c")]), done="advanced"
    )


async def test_a_refused_job_does_not_keep_the_others_of_a_call_back(queue: Queue) -> None:
    await queue.admitted(n=3)
    held = await queue.take(Stage.INIT)
    await queue.store.release([held[1]])
    moves = [Advance(each, None, b"c%d" % place) for place, each in enumerate(held)]
    assert await queue.store.advance(moves) == ["advanced", "already", "advanced"]
    claims = await queue.claim(Stage.RUN, await queue.read(Stage.RUN))
    assert [claim.carry for claim in claims] == [b"c0", b"c2"]


async def test_a_blob_of_a_refused_commit_dies_by_its_ttl(queue: Queue, watch: Watch) -> None:
    held = await queue.hold(Stage.RUN)
    blob = await queue.blob(held)
    await queue.store.release([held])
    await watch.look()
    other: Store = queue.store
    assert await other.advance([Advance(held, None, b"c", blob, 100)]) == ["already"]
    await watch.nothing_changed()
    assert await queue.command("PTTL", blob) > 0
