"""The work of a history: what its trainer submits, and the task family that its workers run."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from random import Random
from typing import Final

from prorl_mq.client.asynchronous import AsyncClient
from prorl_mq.client.transport import ClosedGroup
from prorl_mq.errors import ServiceError
from prorl_mq.schema.dapo import Dapo, Surplus
from prorl_mq.schema.messages import BatchRequest, GroupRequest, Limits, Task
from prorl_mq.schema.task_schema import Schema
from prorl_mq.schema.trajectory import ForkedFrom
from tests.simulation.options import Options
from tests.simulation.rollouts import number_of, record, trajectory
from workers.handler import Eval, Init, Prepared, Ran, Run, Score

SOURCE, TENANT, RUN_ID, NAMESPACE = "simulated", "t", "r", "s"
NOT_FOUND, CONFLICT, UNKNOWN = 404, 409, 422  # statuses of the service
OTHER: Final = "other"  # a family that some workers lack, in histories of the kind `families`
RUN = f"{TENANT}:{RUN_ID}"
FORKED: Final = "tree-"  # how names of forks begin


class Family:
    """A task family whose calls take a drawn time, and sometimes raise, hang or do not hear a cancel."""

    data_sources: Sequence[str] = (SOURCE, OTHER)
    schema = Schema()
    needs_sandbox = False

    def __init__(self, options: Options, random: Random) -> None:
        self._options = options
        self._random = random
        self.calm = False  # from the end of all faults on, nothing fails any more
        self.faults: list[str] = []  # what an attempt found in its log that no other one had written
        self.redis_has_lost = False  # what it had acknowledged
        self.forks: dict[str, ForkedFrom] = {}  # by group: what was asked for under its name
        self.logged: dict[str, int] = {}  # by job: the records that were said to be logged
        self._sent: dict[tuple[str, int], set[int]] = {}  # by job and place: records, one of which may be logged
        self._shared: dict[str, list[int]] = {}  # by group: the records that all its jobs begin with
        self._told: dict[str, int] = {}  # by job: the records that its attempts had for its log
        self._begins_again: set[str] = set()  # jobs of which an attempt has failed before it had any

    async def init(self, context: Init) -> Prepared:
        await self._pass_time()
        return Prepared(carry=1)

    async def run(self, context: Run) -> Ran:
        job = context.job.job_id
        before = self._told.get(job, 0)
        try:
            numbers = await self._turns(context, job)
            await self._pass_time()
        except Exception:
            if self._told.get(job, 0) == before:
                self._begins_again.add(job)
            raise
        made = self._random.random() < 0.3
        return Ran(trajectory=trajectory(numbers, self.forks.get(group_of(job))) if made else None, export=1)

    async def eval(self, context: Eval) -> Score:
        await self._pass_time()
        return Score(reward=float(self._random.randrange(2)))

    async def _turns(self, context: Run, job: str) -> list[int]:
        """Some, with two records each, behind those that a fork begins with. A later attempt finds all that those
        before it have logged, unless one of them has failed before it logged anything.
        """
        log = context.log
        assert log is not None
        found = [number_of(place, each) for place, each in enumerate(log.before)]
        begins = 2 * log.inherited
        self._inherits(job, found[:begins])
        again = len(found) == begins and job in self._begins_again
        self._begins_again.discard(job)
        lost = len(found) < self.logged.get(job, 0) and not self.redis_has_lost and not again
        if lost or any(number not in self._sent.get((job, place), ()) for place, number in enumerate(found)):
            self.faults.append(f"{job} found {found}; {self.logged.get(job)} records were logged")
        if again:
            self.logged[job] = begins
        await self._pass_time()
        for place in range(len(found), begins + 2 * (len(job) % 3)):
            number = int(self._random.random() * 2**31)
            found.append(number)
            self._sent.setdefault((job, place), set()).add(number)
            self._told[job] = self._told.get(job, 0) + 1
            await log.append(record(place, number), wait=place % 2 == 0)
            if place % 2 == 0:
                self.logged[job] = max(self.logged.get(job, 0), place + 1)
            await self._pass_time()
        return found

    def _inherits(self, job: str, found: list[int]) -> None:
        """All jobs of a fork begin with the same turns, which its parent has had logged; other jobs with none."""
        group = group_of(job)
        fork = self.forks.get(group)
        parent, wanted = (fork.job_id, 2 * fork.turn + 2) if fork is not None else ("", 0)
        same = self._shared.setdefault(group, found) == found or self.redis_has_lost
        theirs = all(number in self._sent.get((parent, place), ()) for place, number in enumerate(found))
        if len(found) != wanted or not same or not theirs:
            self.faults.append(f"{job} begins with {found}, and was forked as {fork}; {self._shared[group]} before")
        for place, number in enumerate(found):
            self._sent.setdefault((job, place), set()).add(number)

    async def _pass_time(self) -> None:
        random, kinds, longest_s = self._random, self._options.kinds, self._options.longest_s
        seconds = random.choice((0.0, 0.5, 1.0)) * longest_s * random.random()
        luck = 1.0 if self.calm else random.random()
        if "raise" in kinds and luck < 0.05:
            raise ValueError("the handler of the simulation raises")
        if "hang" in kinds and 0.05 < luck < 0.07:
            seconds = 1e6
        try:
            if seconds:
                await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            if "deaf" in kinds:
                await asyncio.sleep(random.random() * 2 * self._options.lease_ms / 1000)
            raise


class PartOfFamily:
    """The same family before `OTHER` was installed."""

    data_sources = (SOURCE,)
    schema = Schema()
    needs_sandbox = False

    def __init__(self, family: Family) -> None:
        self.init, self.run, self.eval = family.init, family.run, family.eval


def group_of(job: str) -> str:
    """The name of the group of a job."""
    return job.split(":")[1]


def _source(options: Options, place: int) -> str:
    return OTHER if "families" in options.kinds and place % 2 else SOURCE


def batches(options: Options) -> list[BatchRequest]:
    """What the trainer submits."""
    lease_ms = options.lease_ms
    limits = Limits(
        init_ms=6 * lease_ms, run_ms=6 * lease_ms, eval_ms=6 * lease_ms, total_ms=options.total_ms, backoff_ms=100,
        max_deaths=options.max_deaths,
    )  # fmt: skip
    dapo = None
    if "dapo" in options.kinds:
        dapo = Dapo(target_groups=max(1, options.groups // 2), surplus=Surplus(options.surplus), carry_ms=3 * lease_ms)
    refills = options.n if "refill" in options.kinds else 0
    return [
        BatchRequest(
            run_id=RUN_ID,
            batch_id=f"b{number}",
            groups=[
                GroupRequest(
                    task=Task(task_id="x", data_source=_source(options, place)), n=options.n,
                    group_id=f"b{number}-{place}", max_refills=refills,
                )
                for place in range(options.groups)
            ],
            limits=limits,
            dapo=dapo,
        )
        for number in range(options.batches)
    ]  # fmt: skip


class Trainer:
    """Submits batches, reads their groups, and acknowledges them at once or at the end.

    What README asks of a trainer whose Redis has lost its last second: it submits its batches again, under their ids.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self.requests = batches(options)
        self.closed: list[ClosedGroup] = []
        self.done = False
        self.tails_lost = 0
        self._lost = asyncio.Event()

    def tail_lost(self) -> None:
        """Redis's host has crashed: whoever runs the trainer knows that."""
        self.tails_lost += 1
        self._lost.set()

    async def run(self, client: AsyncClient) -> None:
        again = asyncio.ensure_future(self._submit_again(client))
        try:
            async with asyncio.TaskGroup() as group:
                for request in self.requests:
                    group.create_task(self._batch(client, request))
            if self.requests[0].dapo is not None:
                await self._following(client, self.requests, lambda: client.results(RUN_ID, wait_s=4.0))
            last = [await self._report(client, each) for each in self.requests if each.dapo is not None]
        finally:
            again.cancel()
        if not self._options.ack_at_once:
            last += [closed.cursor for closed in self.closed]
        if last:
            await client.ack(RUN_ID, last)
        self.done = True

    async def read_again(self, client: AsyncClient) -> None:
        """Acknowledges what came back with a lost tail after a reader had ended, as the trainer's next process does."""
        while True:
            with contextlib.suppress(ServiceError):  # there is no run, or nobody answers now
                page = await client._door.page(RUN_ID, "0", 0.5)
                await client.ack(RUN_ID, [closed.cursor for closed in page])
            await asyncio.sleep(0.05)

    async def _batch(self, client: AsyncClient, request: BatchRequest) -> None:
        """Some come late: a small one that nothing waits in front of begins with its submission."""
        random = self._options.random(f"late/{request.batch_id}")
        await asyncio.sleep(random.choice((0.0, 0.5)) * random.random())
        await submitted(client, request)
        if request.dapo is None:
            await self._following(client, [request], lambda: client.groups(RUN_ID, request.batch_id, wait_s=4.0))

    async def _following(
        self,
        client: AsyncClient,
        requests: Sequence[BatchRequest],
        groups: Callable[[], AsyncIterator[ClosedGroup]],
    ) -> None:
        """Reads until every group is in. Of a DAPO batch groups may leave, and close after it: their run is read."""
        left = {group.group_id for request in requests for group in request.groups}
        while True:
            lost = self.tails_lost
            try:
                async for closed in groups():
                    await self._take(client, closed)
                    left.discard(closed.record.group_id)
                    if not left:
                        return
            except ServiceError as error:
                if error.status != NOT_FOUND or not self.tails_lost:
                    raise
            if lost == self.tails_lost == 0:
                return
            for request in requests:
                await submitted(client, request, again=True)

    async def _take(self, client: AsyncClient, closed: ClosedGroup) -> None:
        if closed.record.group_id.startswith(FORKED):
            return  # who has forked it reads it, too
        if not self.tails_lost or closed.record.group_id not in {each.record.group_id for each in self.closed}:
            self.closed.append(closed)
        if self._options.ack_at_once:
            await client.ack(RUN_ID, [closed.cursor])

    async def _submit_again(self, client: AsyncClient) -> None:
        while True:
            await self._lost.wait()
            self._lost.clear()
            for request in self.requests:
                await submitted(client, request, again=True)

    async def _report(self, client: AsyncClient, request: BatchRequest) -> str:
        """The cursor of a DAPO batch's report, as soon as it is there."""
        while True:
            try:
                return (await client.report(RUN_ID, request.batch_id)).cursor
            except ServiceError as error:
                if error.status == NOT_FOUND and self.tails_lost:
                    await submitted(client, request, again=True)
                elif error.status != CONFLICT:
                    raise
                await asyncio.sleep(0.1)


async def submitted(client: AsyncClient, request: BatchRequest, *, again: bool = False) -> None:
    """Submits as soon as a worker has announced the task family."""
    while True:
        try:
            await client.submit(request)
        except ServiceError as error:
            if error.status == CONFLICT and again:
                return  # it has ended
            if error.status != UNKNOWN:
                raise
            await asyncio.sleep(0.05)
        else:
            return
