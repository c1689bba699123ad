"""A real queue and its model, side by side: what the rules of the machine act on."""

import asyncio
from collections.abc import Coroutine
from typing import Any, NamedTuple, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant

from prorl_mq.schema.ids import EntryId, Token
from prorl_mq.schema.items import Entry, Held, Settlement
from prorl_mq.schema.lifecycle import State
from prorl_mq.schema.messages import Limits, Outcome, Stage, events
from prorl_mq.schema.timeline import changes
from tests.support.model import Job, Model, differences
from tests.support.queue import POOL, Queue
from tests.support.state import look

T = TypeVar("T")
NODES = (None, "n1")
LIMITS = Limits(max_deaths=3)
BACKENDS = ("http://b1", "http://b2")
picks = st.integers(0, 63)
workers = st.sampled_from(["w1", "w2"])
seldom = st.sampled_from([False] * 7 + [True])  # for what would else end most jobs before they have lived
ends = st.sampled_from([Outcome.COMPLETED, Outcome.COMPLETED, Outcome.INFRA_ERROR, Outcome.STAGE_TIMEOUT])


class Unclaimed(NamedTuple):
    """An entry that a worker has read and does not yet hold."""

    worker: str
    stage: Stage
    node: str | None
    entry: Entry


class QueueCore(RuleBasedStateMachine):
    """`self.model` is what should be; every rule does the same to it and to the server, and compares the answers."""

    def __init__(self, runner: "asyncio.Runner", queue: Queue) -> None:
        super().__init__()
        self.runner, self.queue = runner, queue
        self.workers = {name: queue.worker(name) for name in ("w1", "w2")}
        self.model = Model()
        self.unclaimed: list[Unclaimed] = []
        self.holds: list[Held] = []  # every one that was ever granted, by now stale or not
        self.verdicts: list[Settlement] = []  # made, not necessarily applied
        self.do(self._start())

    async def _start(self) -> None:
        await self.queue.command("FLUSHALL")
        await self.queue.prepare("n1")
        for address in BACKENDS:
            await self.queue.store.join(POOL, address, b"about it")
            self.model.backends[address] = False

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def command(self, *words: str | int) -> Any:
        """One Redis command."""

        async def execute() -> Any:
            return await self.queue.command(*words)

        return self.do(execute())

    def jobs(self, *states: State) -> list[Job]:
        return [job for job in self.model.jobs.values() if job.state in states]

    def at_work(self) -> list[Job]:
        """Those that a worker may commit: leased ones first, then those that it has only read."""
        return [*self.jobs(State.LEASED), *(job for job in self.jobs(State.QUEUED) if job.read)]

    def unread(self) -> list[Job]:
        return [job for job in self.jobs(State.QUEUED) if not job.read]

    def hold(self, job: Job) -> Held:
        return Held(job.ref, Token(job.token), EntryId(job.entry), job.stage, job.node, POOL)

    @invariant()
    def the_server_is_as_the_model_says(self) -> None:
        found = self.do(look(self.queue.redis, self.queue.keys))
        assert differences(self.model, found) == []
        for job in self.model.jobs.values():  # and so is what each time line tells
            if line := found.flat.get(f"job:{job.ref} line"):
                told = changes(events(job.ref, line), now_ms=0)[-1]
                assert (told.state, told.stage) == (job.state, job.stage)


def choose(candidates: list[T], pick: int) -> T:
    return candidates[pick % len(candidates)]
