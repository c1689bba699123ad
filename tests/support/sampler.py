"""A run with fake workers, stepped by hand: every step is done to its end, so that the order of steps alone counts."""

from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis

from prorl_mq.duties.draw import Replenishing
from prorl_mq.duties.settle import Settling
from prorl_mq.schema.codec import decode
from prorl_mq.schema.dapo import Dapo
from prorl_mq.schema.ids import GroupRef, JobRef, RunRef, group_ref, job_parts
from prorl_mq.schema.items import Finish, Held
from prorl_mq.schema.lifecycle import State
from prorl_mq.schema.messages import (
    BatchAccepted,
    BatchRequest,
    GroupRecord,
    GroupRequest,
    Limits,
    Outcome,
    Stage,
    Task,
)
from prorl_mq.schema.status import BatchReport, CancelAnswer
from prorl_mq.schema.task_schema import Schema
from prorl_mq.service import cancel as cancellation
from prorl_mq.service import submit as submission
from prorl_mq.store import results, work
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.store import Store
from tests.support.queue import LINGER_MS, RUN, Queue, record

TENANT, RUN_ID = RUN.split(":")


def prompts(*names: str, n: int = 2, **about: Any) -> list[GroupRequest]:
    """Groups with names of their own."""
    task = Task(task_id="t", data_source="sums")
    return [GroupRequest(task=task, n=n, group_id=name, **about) for name in names]


class Sampler:
    """One worker, the two duties of dynamic sampling, and a trainer."""

    def __init__(self, redis: "Redis", keys: Keys, duties: Store | None = None) -> None:
        self.queue = Queue(redis, keys)
        self.store = duties or self.queue.store
        self.held: dict[JobRef, Held] = {}
        self.hire()

    def hire(self) -> None:
        """New processes, which know nothing."""
        self.settling = Settling(self.store, linger_ms=LINGER_MS)
        self.replenishing = Replenishing(self.store)

    async def prepare(self) -> None:
        await self.queue.prepare()
        await work.enroll(self.store, {"sums": Schema()}, None)

    async def submit(
        self, batch: str, groups: Sequence[GroupRequest] = (), dapo: Dapo | None = None, **about: Any
    ) -> BatchAccepted:
        limits = Limits(max_deaths=100)
        request = BatchRequest(run_id=RUN_ID, batch_id=batch, groups=groups, dapo=dapo, limits=limits, **about)
        return await submission.accept(self.queue.store, TENANT, request)

    async def calm(self) -> None:
        """Runs the duties and the worker until nothing is left to do but to finish jobs."""
        command, keys = self.queue.command, self.queue.keys
        while True:
            await command("DEL", keys.draw_bell)
            await self.replenishing.look_around()
            await self.admit()
            await self.settle()
            if not await self.obey() and not await command("EXISTS", keys.draw_bell, keys.backlog(RUN)):
                return

    async def admit(self) -> None:
        """Everything in the backlog, and the worker takes it."""
        for ref in await self.queue.command("ZRANGE", self.queue.keys.backlog(RUN), 0, -1):
            await self.queue.store.admit(RUN, [await self.queue.wanted(GroupRef(ref.decode()))])
        await self.claim()

    async def claim(self) -> None:
        """The worker takes all jobs that are queued."""
        while held := await self.queue.take(Stage.INIT, count=64):
            self.held |= {each.ref: each for each in held}

    async def settle(self) -> bool:
        """Every verdict that is due; whether there was any."""
        due = bool(await self.queue.command("XLEN", self.queue.keys.due))
        while await self.queue.command("XLEN", self.queue.keys.due):
            await self.settling.turn()
        return due

    async def obey(self) -> bool:
        """The worker confirms what it was told to stop; whether there was anything."""
        told = [ref for ref, state in (await self._jobs()).items() if state == State.STOPPING]
        for ref in told:
            await self.queue.store.confirm(self.held.pop(ref), record(ref, Outcome.CANCELLED))
        return bool(told)

    async def running(self) -> list[JobRef]:
        """Jobs that the worker holds, in the order of their claims."""
        return [ref for ref, state in (await self._jobs()).items() if state == State.LEASED]

    async def finish(self, ref: JobRef, reward: float | None = None) -> str:
        """Without a reward the job is lost by infrastructure. A commit that is refused leaves the job held."""
        held = self.held[ref]
        outcome = Outcome.INFRA_ERROR if reward is None else Outcome.COMPLETED
        packed = record(ref, outcome, reward=reward, response_tokens=10)
        [answer] = await self.queue.store.finish([Finish(held, outcome, packed)])
        if answer == "finished":
            del self.held[ref]
        return answer

    async def finish_group(self, name: str, *rewards: float) -> None:
        """Every running sample of a group, in order."""
        mine = [ref for ref in await self.running() if job_parts(ref).group == name]
        for ref, reward in zip(mine, rewards, strict=True):
            await self.finish(ref, reward)

    async def cancel(self, kind: str, name: str) -> CancelAnswer:
        return await cancellation.cancel(self.queue.store, kind, f"{TENANT}:{name}")

    async def records(self) -> list[GroupRecord]:
        found = await results.collect(self.queue.store, RUN, limit=10_000)
        return [decode(each.record, GroupRecord) for each in found if not each.of_batch]

    async def verdicts(self) -> dict[str, str]:
        """Of every published group; each stands there once."""
        published = await self.records()
        assert len({each.group_id for each in published}) == len(published)
        return {each.group_id: str(each.verdict) for each in published}

    async def reports(self) -> dict[str, BatchReport]:
        found = await results.collect(self.queue.store, RUN, limit=10_000)
        made = [decode(each.record, BatchReport) for each in found if each.of_batch]
        assert len({each.batch_id for each in made}) == len(made)
        return {each.batch_id: each for each in made}

    async def names(self, key: str) -> list[str]:
        """Members of a sorted set of groups, in order."""
        found = await self.queue.command("ZRANGE", key, 0, -1)
        return [ref.decode().rpartition(":")[2] for ref in found]

    async def _jobs(self) -> dict[JobRef, str]:
        refs = list(self.held)
        states = await self.queue.store.read_many([("HGET", self.queue.keys.job(ref), "state") for ref in refs])
        return {ref: (state or b"").decode() for ref, state in zip(refs, states, strict=True)}


def group(name: str, run: RunRef = RUN) -> GroupRef:
    return group_ref(run, name)
