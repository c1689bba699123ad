"""What a trainer may do: submit, acknowledge and cancel, each more than once."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from prorl_mq.schema.ids import group_of
from prorl_mq.schema.items import NewFork
from prorl_mq.schema.lifecycle import State
from prorl_mq.schema.messages import Outcome
from prorl_mq.service import cancel as cancellation
from prorl_mq.store import results
from tests.properties.machine_core import LIMITS, QueueCore, choose, picks, seldom
from tests.support.model import Group, Job
from tests.support.queue import RUN


class TrainerRules(QueueCore):
    """Rules of the trainer's side."""

    @precondition(lambda self: len(self.model.groups) < 3)
    @rule(name=st.sampled_from("abc"), batch=st.integers(0, 1), n=st.integers(1, 3), refills=st.integers(0, 2))
    def submit(self, name: str, batch: int, n: int, refills: int) -> None:
        about: dict[str, Any] = {"batch": f"{name}{batch}", "n": n, "max_refills": refills, "limits": LIMITS}
        made, group = self.queue.new(name, **about)
        expected = self.model.submit(group.ref, about["batch"], group.digest, n, refills)
        assert self.do(self.queue.store.submit(made, [group])) == [expected]

    @precondition(lambda self: self.model.jobs and len(self.model.groups) < 3)
    @rule(pick=picks, name=st.sampled_from("abc"), n=st.integers(1, 2))
    def fork(self, pick: int, name: str, n: int) -> None:
        """A group that begins with turns of any job; afterwards it is a group like all."""
        parent = choose(list(self.model.jobs.values()), pick).ref
        about: dict[str, Any] = {"batch": f"{name}f", "n": n, "max_refills": 0, "limits": LIMITS}
        made, group = self.queue.new(name, **about)
        theirs = self.model.groups.get(group_of(parent))
        is_open = theirs is not None and not theirs.cursor
        expected = self.model.fork(group.ref, about["batch"], group.digest, n, parent_open=is_open)
        begins = NewFork(b"turns", parent, sealed_of=group_of(parent))
        assert self.do(self.queue.store.fork(made, group, begins)) == expected

    @precondition(lambda self: any(group.cursor for group in self.model.groups.values()))
    @rule(pick=picks, twice=st.booleans())
    def ack(self, pick: int, twice: bool) -> None:
        group = choose([group for group in self.model.groups.values() if group.cursor], pick)
        assert self.do(results.acknowledge(self.queue.store, RUN, [group.cursor])) == 1
        if twice:
            assert self.do(results.acknowledge(self.queue.store, RUN, [group.cursor])) == 0
        self.model.acked(group)

    @precondition(lambda self: self.model.jobs and self.model.groups)
    @rule(pick=picks, really=seldom)
    def cancel_job(self, pick: int, really: bool) -> None:
        open_jobs = [job for job in self.model.jobs.values() if group_of(job.ref) in self.model.groups]
        if open_jobs and really:
            job = choose(open_jobs, pick)
            answer = self.do(cancellation.cancel(self.queue.store, "job", job.ref))
            assert answer.jobs == self._stopping(job)

    @precondition(lambda self: self.model.groups)
    @rule(pick=picks, really=seldom)
    def cancel_group(self, pick: int, really: bool) -> None:
        if not really:
            return
        self.cancel(choose(list(self.model.groups.values()), pick))

    def cancel(self, group: Group) -> None:
        answer = self.do(cancellation.cancel(self.queue.store, "group", group.ref))
        assert answer.jobs == self._cancelled(group)

    @precondition(lambda self: self.model.stored)
    @rule(really=seldom)
    def cancel_run(self, really: bool) -> None:
        if really:
            answer = self.do(cancellation.cancel(self.queue.store, "run", RUN))
            assert answer.jobs == sum([self._cancelled(group) for group in self.model.groups.values()])

    def _cancelled(self, group: Group) -> int:
        if group.cursor:
            return 0
        self.model.withdraw(group)
        return sum([self._stopping(job) for job in self.model.of(group)])

    def _stopping(self, job: Job) -> bool:
        """Whether a worker must stop it, told by this cancel or by an earlier one."""
        return self.model.stop(job, Outcome.CANCELLED, "cancel") or job.state is State.STOPPING
