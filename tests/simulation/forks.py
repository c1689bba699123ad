"""Forks of a history's jobs: asked for at random moments, and followed until each group has its record."""

import asyncio
from random import Random
from typing import TYPE_CHECKING, Final

from prorl_mq.client.asynchronous import AsyncClient
from prorl_mq.errors import ServiceError
from prorl_mq.schema.messages import GroupRecord
from prorl_mq.schema.trajectory import ForkedFrom
from tests.simulation.work import CONFLICT, FORKED, NOT_FOUND, RUN, RUN_ID

if TYPE_CHECKING:
    from tests.simulation.world import World

TRIES: Final = 8  # most jobs have no turn, or have left RUN without a trajectory
FREES_NAMES: Final = frozenset({"lost_tail", "hold_reads", "freeze_api", "late"})
GONE: Final = "that it begins with are gone"  # in the error of a forked job
NEWEST: Final = 6  # jobs that are asked for: others are over


class Forks:
    """Those of one history, by the names of their groups."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._asked = 0
        self.records: list[GroupRecord] = []

    async def fork(self, random: Random, seconds: float) -> None:
        """Forks some job, and reads what becomes of it. The name of another group must be refused."""
        world = self._world
        within_s = seconds + world.options.faults_s + 90.0 + 2 * world.options.work_s
        try:
            async with asyncio.timeout(within_s):
                while not self._parents() and not world.trainer.done:
                    await asyncio.sleep(0.02)
                for _ in range(TRIES):
                    await asyncio.sleep((seconds + 1.0) * random.random() / TRIES)
                    if await self._forked(random):
                        return
        except TimeoutError:
            world.finding("a fork did not close", f"within {within_s:.0f} s")

    async def _forked(self, random: Random) -> bool:
        parents = self._parents()
        if not parents:
            return False
        (job, turns), n, priority = random.choice(parents[-NEWEST:]), random.choice((1, 2)), random.choice((None, 1))
        order = ForkedFrom(job_id=job, turn=random.randrange(turns))
        name, taken = f"{FORKED}{self._asked}", random.random() < 0.2 and self._names_stay
        self._asked += 1
        if taken:
            name = job.split(":")[1]
        else:
            self._world.family.forks[name] = order
        client = self._world.client()
        if not await self._made(client, order, name, n, priority):
            return False
        if taken:
            self._world.finding("a fork has the name of another group", name)
            return True
        self._world.network.counts["forked"] += 1
        await self._followed(client, order, name, n, priority)
        return True

    @property
    def _names_stay(self) -> bool:
        """No group is acknowledged, or lost, between a look at it and the verb: then its name is free."""
        options = self._world.options
        return not (options.ack_at_once or self._world.trainer.done or options.kinds & FREES_NAMES)

    def _parents(self) -> list[tuple[str, int]]:
        """Jobs with how many turns they have had logged, the newest ones last."""
        return [(job, count // 2) for job, count in self._world.family.logged.items() if count > 1]

    async def _made(self, client: AsyncClient, order: ForkedFrom, name: str, n: int, priority: int | None) -> bool:
        """With the batch of its parent, so that it may have closed."""
        requests = self._world.trainer.requests
        parent = order.job_id.split(":")[1]
        batch = next((each for each in requests if parent in {group.group_id for group in each.groups}), None)
        try:
            answer = await client.fork(order.job_id, order.turn, n, group=name, priority=priority, batch=batch)
        except ServiceError as error:
            if error.status not in {NOT_FOUND, CONFLICT}:
                raise
            return False
        jobs = [f"{RUN_ID}:{name}:{index}" for index in range(n)]
        shared = {order.turn + 1, 0} if answer.repeated else {order.turn + 1}  # its turns go with its record
        if answer.jobs != jobs or answer.shared_tokens not in shared:
            self._world.finding("the answer to a fork is wrong", str(answer))
        return True

    async def _followed(self, client: AsyncClient, order: ForkedFrom, name: str, n: int, priority: int | None) -> None:
        """Reads its record. A fork that Redis has lost is asked for again; its parent may be gone."""
        trainer = self._world.trainer
        while True:
            lost = trainer.tails_lost
            try:
                async for closed in client.groups(RUN_ID, name, wait_s=4.0):
                    self.records.append(closed.record)
                    if lost == trainer.tails_lost == 0:
                        self._check(closed.record)
                    await client.ack(RUN_ID, [closed.cursor])
                    return
            except ServiceError as error:
                if error.status != NOT_FOUND or not trainer.tails_lost:
                    raise
            if lost == trainer.tails_lost == 0:
                self._world.finding("a fork has no record", name)
                return
            if not await self._made(client, order, name, n, priority):
                return

    def _check(self, record: GroupRecord) -> None:
        """The turns of a group were there for each of its jobs, and went with its record."""
        world, group = self._world, f"{RUN}:{record.group_id}"
        for sample in record.samples:
            if sample.error is not None and GONE in sample.error.message:
                world.finding("a forked job has lost its turns", sample.job_id)
        if world.network.server.call(("EXISTS", f"{world.keys.prefix}fork:{group}")):
            world.finding("turns of a fork are left behind its record", group)
