"""A Hypothesis machine that does to a real queue whatever can be done to it, beside a model of it."""

from hypothesis import strategies as st
from hypothesis.stateful import initialize

from prorl_mq.schema.lifecycle import State
from prorl_mq.schema.messages import Outcome
from prorl_mq.store import results
from tests.properties.machine_maintenance import MaintenanceRules
from tests.support.queue import RUN
from tests.support.state import look

PERMANENT = frozenset({
    "stage", "leases", "delayed", "deadlines", "paused", "due", "changed", "cancels", "events", "workers", "runs",
    "lanes", "pool", "pools", "bytes", "counters", "results", "run", "batches",
})  # fmt: skip


class QueueMachine(MaintenanceRules):
    """Every rule, from jobs that have just been admitted to an empty queue."""

    @initialize(n=st.integers(1, 3), refills=st.integers(0, 2))
    def begin_with_some_jobs(self, n: int, refills: int) -> None:
        for name in "ab":
            self.submit(name, 0, n, refills)
            self.admit(0)

    def teardown(self) -> None:
        """Drains everything: then each group has been published once, and nothing is left that should have gone."""
        for _ in range(40):
            if not any(not group.cursor for group in self.model.groups.values()):
                break
            self._drain()
            self.the_server_is_as_the_model_says()
        assert all(self.model.published[batch] == 1 for batch in self.model.stored)
        for group in list(self.model.groups.values()):
            assert self.do(results.acknowledge(self.queue.store, RUN, [group.cursor])) == 1
            self.model.acked(group)
        self.the_server_is_as_the_model_says()
        flat = self.do(look(self.queue.redis, self.queue.keys)).flat
        left = {place.partition(":")[0] for place in flat if " " not in place and f"{place} ttl" not in flat}
        assert left <= PERMANENT
        assert [value for place, value in flat.items() if place.startswith("pool:policy http")].count("0") == len(
            [place for place in flat if place.startswith("pool:policy http")]
        )

    def _drain(self) -> None:
        for group in list(self.model.groups.values()):
            if group.backlog:
                self.admit(0)
        if any(job.overdue and job.timer for job in self.model.jobs.values()):
            self.expire()
        for job in self.jobs(State.PAUSED, State.QUEUED, State.LEASED):
            if job.marked:
                self._resume(job)
        for job in self.jobs(State.DELAYED):
            self.promote(self.jobs(State.DELAYED).index(job), due=True)
        self.the_server_is_as_the_model_says()
        for job in self.jobs(State.QUEUED):
            if job.read:
                self._reap_unclaimed(job)
        self.the_server_is_as_the_model_says()
        while self.unread():
            self.take(0, "w1", 64, calls=False)
            if any(job.overdue for job in self.jobs(State.QUEUED)):
                self.expire()
        while self.jobs(State.LEASED):
            self.finish(0, Outcome.COMPLETED)
        while self.jobs(State.STOPPING):
            self.confirm(0)
        self.verdicts = []
        self.do(self._decide())
        for place in range(len(self.verdicts)):
            self.settle(place)
