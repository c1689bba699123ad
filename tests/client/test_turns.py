"""Turns of a job that begins again between two of their pages."""

import pytest

from prorl_mq.cli.looking import turns_so_far
from prorl_mq.client import AsyncClient
from prorl_mq.schema.items import Fail
from prorl_mq.schema.messages import Stage
from prorl_mq.schema.turns import LoggedTurns
from prorl_mq.service.turn_pages import AT_ONCE
from tests.api.service import Worker, batch
from tests.api.test_turns import answered, sampled, write

pytestmark = pytest.mark.anyio
JOB = "run:batch-0:0"


async def test_the_turns_of_two_rollouts_are_never_taken_for_one(
    client: AsyncClient, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `prorl-mq job --timeline` shows them, and `prorl-mq replay` makes their calls again."""

    async def logs(rollout: str, turns: int) -> None:
        held = await worker.in_run()
        begun = float(rollout == "second")
        records = [each for turn in range(turns) for each in (sampled(begun + turn), answered(f"{rollout} {turn}"))]
        await write(worker, held, records)
        if rollout == "first":
            pages.append(Fail(held, Stage.INIT, 0, "broken", counts=True, forgets=True))

    pages: list[Fail] = []
    read = client.turns

    async def turns(name: str, after: int = 0) -> LoggedTurns:
        page = await read(name, after)
        if pages:
            assert len(page.turns) == AT_ONCE
            assert await worker.store.fail([pages.pop()]) == ["delayed"]
            await logs("second", AT_ONCE + 2)
        return page

    await client.submit(batch(groups=1))
    await logs("first", AT_ONCE + 1)
    monkeypatch.setattr(client, "turns", turns)
    found, _ = await turns_so_far(client, JOB)
    assert [turn.calls[0].result for turn in found] == [f"second {turn}" for turn in range(AT_ONCE + 2)]
