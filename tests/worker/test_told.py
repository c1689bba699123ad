"""INIT and RUN read nothing again that an entry tells of its group; EVAL reads it, and what is sealed."""

from collections.abc import Sequence
from typing import Any

import pytest

from prorl_mq.schema.codec import encode
from prorl_mq.schema.ids import GroupRef
from prorl_mq.schema.items import Advance, Lane
from prorl_mq.schema.messages import Stage
from prorl_mq.store import work
from prorl_mq.store.server.connection import RedisSettings
from prorl_mq.store.verbs.groups import ADMIT
from tests.support.queue import Queue
from tests.worker.stage import SUMS, made, options
from workers.process.read import Read
from workers.stages.work import Work

pytestmark = pytest.mark.anyio
ANSWER = encode({"answer": 2})


async def begun(queue: Queue, settings: RedisSettings, stage: Stage) -> Sequence[Work]:
    """As a worker of the stage begins the job."""
    async with made(options(settings, stage=stage), SUMS) as worker:
        works, leased = await worker.claims.begin(Read(Lane(stage), await queue.read(stage)))
        assert not leased
        return works


@pytest.mark.parametrize(
    ("sealed", "reads", "secrets"),
    [(b"", 1, [b"", b"", b""]), (ANSWER, 1, [b"", b"", ANSWER])],
    ids=["whole", "sealed"],
)
async def test_a_lone_jobs_spec_is_read_by_eval_alone(
    queue: Queue,
    settings: RedisSettings,
    monkeypatch: pytest.MonkeyPatch,
    sealed: bytes,
    reads: int,
    secrets: Sequence[bytes],
) -> None:
    asked = list[Sequence[GroupRef]]()
    reading = work.specs

    async def noted(store: Any, groups: Sequence[GroupRef], *, sealed: bool) -> Any:
        asked.append(groups)
        return await reading(store, groups, sealed=sealed)

    monkeypatch.setattr(work, "specs", noted)
    await queue.store.hold(ADMIT, lease_ms=60_000)
    await queue.store.offer(1, ["sums"])
    batch, group = queue.new()
    assert await queue.store.submit(batch, [group._replace(sealed=sealed)], unbounded=True) == ["begun"]
    found = list[bytes]()
    for stage in Stage:
        [job] = await begun(queue, settings, stage)
        assert job.spec.payload == {"question": "1 + 1"}
        found.append(job.sealed)
        if stage is not Stage.EVAL:
            assert await queue.store.advance([Advance(job.held, None, b"")]) == ["advanced"]
    assert found == secrets
    assert len(asked) == reads
