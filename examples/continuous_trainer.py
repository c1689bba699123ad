"""A fully asynchronous trainer: it learns from groups as they close, and the service never runs far ahead of it."""

from collections.abc import Awaitable, Callable, Sequence

from prorl_mq.client import AsyncClient, ClosedGroup, RunSettings
from prorl_mq.schema.messages import BatchRequest, GroupRequest

AHEAD = 16  # groups that run or wait for the trainer at most: this bounds how old a rollout can be
Learn = Callable[[ClosedGroup], Awaitable[None]]


async def train(client: AsyncClient, run: str, groups: Sequence[GroupRequest], learn: Learn) -> None:
    """After a crash, start it again: it resumes with what was not acknowledged."""
    await client.configure_run(run, RunSettings(max_unacked_groups=AHEAD))
    await client.submit(BatchRequest(run_id=run, batch_id="prompts", groups=groups))
    async for closed in client.groups(run, batch_id="prompts"):
        await learn(closed)
        await client.ack(run, [closed.cursor])  # makes room for the next group
