"""Rollouts for a trainer that asks for samples and waits: many at once over one run, each acknowledged when given.

    async with AsyncClient(url) as client, Rollouts(client, "run") as rollouts:
        samples = await rollouts.of(task, n=8)

One reader follows the run and hands each closed group to the call that asked for it.
"""

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

from prorl_mq import chance
from prorl_mq.client.asynchronous import AsyncClient
from prorl_mq.client.transport import ClosedGroup
from prorl_mq.converters.rollout import Rollout, rollouts
from prorl_mq.errors import NotTrainable
from prorl_mq.schema.messages import BatchRequest, GroupRequest, Purpose, Sampling, Task

_OPEN: Final[dict[tuple[asyncio.AbstractEventLoop, str, str], tuple[AsyncClient, "Rollouts"]]] = {}
_NAMES: Final[Mapping[str, str]] = dict.fromkeys(
    ("max_tokens", "max_new_tokens", "max_generate_length"), "max_tokens_per_turn"
)


class Rollouts:
    """Asks for samples in one run. Leaving it cancels what was asked for and has not come."""

    def __init__(self, client: AsyncClient, run_id: str, *, pool: str = "policy") -> None:
        self._client, self._run_id, self._pool = client, run_id, pool
        self._asked: dict[str, asyncio.Future[ClosedGroup]] = {}
        self._tasks = asyncio.TaskGroup()
        self._reader: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._reader is not None:
            self._reader.cancel()
        await self._tasks.__aexit__(kind, error, trace)

    async def of(
        self, task: Task, *, n: int = 1, sampling: Sampling | None = None, purpose: Purpose = Purpose.TRAIN
    ) -> list[Rollout]:
        """N samples of a task, each with a reward and tokens; refills have taken the place of lost ones.

        Raises `NotTrainable` if the service could not get so many. A call that is cancelled ends its rollouts.
        """
        name = chance.name(16)
        self._asked[name] = asyncio.get_running_loop().create_future()
        group = GroupRequest(task=task, n=n, group_id=name)
        batch = BatchRequest(
            run_id=self._run_id, batch_id=name, groups=[group], sampling=sampling or Sampling(), pool=self._pool,
            purpose=purpose,
        )  # fmt: skip
        try:
            await self._client.submit(batch)
            if self._reader is None:  # a run exists from its first batch on
                self._reader = self._tasks.create_task(self._read(), name=f"results of {self._run_id}")
            closed = await self._asked[name]
        except asyncio.CancelledError:
            await asyncio.shield(self._client.cancel("group", f"{self._run_id}:{name}"))
            raise
        finally:
            del self._asked[name]
        found = await self._with_tokens(closed)
        await self._client.ack(self._run_id, [closed.cursor])
        if len(found) < n:
            record = closed.record
            why = f"{len(found)} of {n} samples can be trained on ({record.verdict}: {record.reason or 'no reason'})"
            raise NotTrainable(f"task {task.task_id!r}: {why}")
        return found

    async def _with_tokens(self, closed: ClosedGroup) -> list[Rollout]:
        jobs = [sample.job_id for sample in closed.record.samples if sample.trajectory and not sample.replaced]
        trajectories = await asyncio.gather(*map(self._client.trajectory, jobs))
        return rollouts(closed.record, dict(zip(jobs, trajectories, strict=True)))

    async def _read(self) -> None:
        async for closed in self._client.results(self._run_id):
            asked = self._asked.get(closed.record.group_id)
            if asked is not None and not asked.done():
                asked.set_result(closed)


async def shared(url: str, run_id: str, *, token: str | None = None) -> Rollouts:
    """The one of this event loop, for trainers that make an object for each sample and tell it nothing of an end."""
    place = (asyncio.get_running_loop(), url, run_id)
    if place not in _OPEN:
        client = AsyncClient(url, token=token)
        _OPEN[place] = (client, Rollouts(client, run_id))
        await _OPEN[place][1].__aenter__()
    return _OPEN[place][1]


async def close_shared() -> None:
    """Ends those of this event loop, for who knows when it ends."""
    for place in [place for place in _OPEN if place[0] is asyncio.get_running_loop()]:
        client, rollouts = _OPEN.pop(place)
        await rollouts.__aexit__(None, None, None)
        await client.aclose()


def sampling_of(given: Mapping[str, Any]) -> Sampling:
    """Sampling from a trainer's own words: what it calls differently is renamed, what only its engine knows is left."""
    known = {_NAMES.get(name, name): value for name, value in given.items() if value is not None}
    return Sampling(**{name: value for name, value in known.items() if name in Sampling.__struct_fields__})
