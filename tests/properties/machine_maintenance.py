"""What time and maintenance do: admit, lapse, reap, promote, expire and settle."""

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from prorl_mq.duties.expire import Expiry, Promotion
from prorl_mq.duties.reap import decide
from prorl_mq.duties.service_clock import ServiceClock
from prorl_mq.duties.settle import settlement
from prorl_mq.schema.codec import decode
from prorl_mq.schema.ids import GroupRef
from prorl_mq.schema.items import Pause, Reap, Resume, Wanted
from prorl_mq.schema.lifecycle import State, Verb
from prorl_mq.schema.messages import GroupRecord, Outcome, Stage
from prorl_mq.schema.status import PauseEnd
from prorl_mq.store.store import renewal
from tests.properties.machine_core import LIMITS, choose, picks, seldom
from tests.properties.machine_worker import WorkerRules
from tests.support.model import HELD, Group, Job
from tests.support.queue import LINGER_MS, POOL, RUN, spec

PAUSABLE = (State.QUEUED, State.LEASED, State.DELAYED, State.PAUSED)


class MaintenanceRules(WorkerRules):
    """Rules of time and of the loops."""

    @precondition(lambda self: any(group.backlog for group in self.model.groups.values()))
    @rule(pick=picks)
    def admit(self, pick: int) -> None:
        group = choose([group for group in self.model.groups.values() if group.backlog], pick)
        seen = Wanted(group.ref, group.next, group.wanted, 3_600_000)
        assert self.do(self.queue.store.admit(RUN, [seen])) == [group.wanted]
        self.model.admit(group)
        assert self.do(self.queue.store.admit(RUN, [seen])) == [-1]

    @precondition(lambda self: self.jobs(*HELD))
    @rule(pick=picks)
    def let_a_lease_lapse(self, pick: int) -> None:
        job = choose(self.jobs(*HELD), pick)
        if not job.lapsed:
            self.do(self.queue.overdue(job.ref))
            job.lapsed = True

    @precondition(lambda self: self.jobs(*HELD))
    @rule(pick=picks, worker=st.sampled_from(["w1", "w2"]), known=st.booleans())
    def bury(self, pick: int, worker: str, known: bool) -> None:
        """The end of a worker's process, or that of an earlier start of it."""
        job = choose(self.jobs(*HELD), pick)
        beat = renewal(self.queue.keys, worker, {"stage": "run", "started_ms": 2}, [], lease_ms=60_000)
        self.do(self.queue.store.call("renew", beat.keys, beat.arguments))
        [answer] = self.do(self.queue.store.bury(worker, 2 if known else 1, [(job.ref, job.token)]))
        if not known:
            assert answer == "unknown"
        elif job.worker != worker:
            assert answer == "stale"
        else:
            assert answer == ("already" if job.lapsed else "buried")
            job.lapsed = True

    @precondition(lambda self: self.jobs(*HELD))
    @rule(pick=picks)
    def reap(self, pick: int) -> None:
        job = choose(self.jobs(*HELD), pick)
        answer = self._reap(job, leased=True)
        if not job.lapsed:
            assert answer == "held"
        elif job.state is State.STOPPING:
            assert answer == "ended"
            self.model.end(job, job.ending)
        elif job.deaths + 1 >= LIMITS.max_deaths:
            assert answer == "ended"
            self.model.end(job, Outcome.INFRA_ERROR)
        else:
            assert answer == "requeued"
            job.queue(Stage.INIT if job.stage is Stage.RUN else job.stage)
            job.deaths += 1

    @precondition(lambda self: any(job.read for job in self.jobs(State.QUEUED)))
    @rule(pick=picks)
    def reap_what_was_never_claimed(self, pick: int) -> None:
        self._reap_unclaimed(choose([job for job in self.jobs(State.QUEUED) if job.read], pick))

    def _reap_unclaimed(self, job: Job) -> None:
        answer = self._reap(job, leased=False)
        if job.deaths + 1 >= LIMITS.max_deaths:
            assert answer == "ended"
            self.model.end(job, Outcome.INFRA_ERROR)
        else:
            assert answer == "requeued"
            job.queue(job.stage, job.node)
            job.deaths += 1

    def _reap(self, job: Job, *, leased: bool) -> str:
        state, item = decide(self.do(self.queue.snapshot(job.ref)), spec(limits=LIMITS), leased=leased)
        [answer] = self.do(self.queue.store.reap(Verb.REAP, state, [item]))
        return answer

    @precondition(lambda self: any(job.node for job in self.jobs(State.QUEUED)))
    @rule(pick=picks)
    def evacuate(self, pick: int) -> None:
        job = choose([job for job in self.jobs(State.QUEUED) if job.node], pick)
        stream = self.queue.keys.prefix + job.stream
        item = Reap(job.ref, job.token, job.entry, stream, Stage.INIT, POOL, unread=True, deaths=0)
        answer = self.do(self.queue.store.reap(Verb.EVACUATE, State.QUEUED, [item]))
        assert answer == ["held" if job.read else "requeued"]
        if not job.read:
            job.queue(Stage.INIT)

    @precondition(lambda self: self.jobs(State.DELAYED))
    @rule(pick=picks, due=st.booleans())
    def promote(self, pick: int, due: bool) -> None:
        job = choose(self.jobs(State.DELAYED), pick)
        if due:
            self.do(self.queue.backed_off(job.ref))
            job.queue(job.stage)
        self.do(Promotion(self.queue.store).turn())

    @precondition(lambda self: self.jobs(*PAUSABLE))
    @rule(pick=picks, really=seldom)
    def pause(self, pick: int, really: bool) -> None:
        job = choose(self.jobs(*PAUSABLE), pick)
        if not really:
            return
        wanted = [Pause(job.ref, self.queue.keys.prefix + job.stream)]
        held = job.state is State.LEASED or job.read
        answer = self.do(self.queue.store.pause(wanted, for_ms=3_600_000, ends=PauseEnd.RESUME))
        assert answer == ["pausing" if held else "parked"]
        if held:
            job.marked = True
        else:
            job.park()

    @precondition(lambda self: any(job.live and job.marked for job in self.model.jobs.values()))
    @rule(pick=picks)
    def resume(self, pick: int) -> None:
        self._resume(choose([job for job in self.model.jobs.values() if job.live and job.marked], pick))

    def _resume(self, job: Job) -> None:
        stage = Stage.INIT if job.node else job.stage
        answer = self.do(self.queue.store.resume([Resume(job.ref, job.token, stage)]))
        if job.state is State.STOPPING:
            assert answer == ["already"]
        else:
            assert answer == ["resumed"]
            job.resume(stage)

    @precondition(lambda self: any(job.timer for job in self.model.jobs.values()))
    @rule(pick=picks, really=seldom)
    def pass_a_deadline(self, pick: int, really: bool) -> None:
        if not really:
            return
        job = choose([job for job in self.model.jobs.values() if job.timer], pick)
        self.do(self.queue.past_deadline(job.ref))
        job.overdue = True

    @precondition(lambda self: any(job.overdue and job.timer for job in self.model.jobs.values()))
    @rule()
    def expire(self) -> None:
        self.do(Expiry(self.queue.store, ServiceClock(self.queue.store, lease_ms=LINGER_MS)).turn())
        for job in list(self.model.jobs.values()):
            if job.overdue and job.timer:
                self.model.stop(job, Outcome.EXPIRED, "expire")

    @precondition(lambda self: any(group.due for group in self.model.groups.values()))
    @rule(at_once=st.booleans(), cancels=st.booleans())
    def decide_on_what_is_due(self, at_once: bool, cancels: bool) -> None:
        """A verdict takes time to make: meanwhile a group that is to be refilled may be cancelled."""
        before = len(self.verdicts)
        self.do(self._decide())
        if cancels and len(self.verdicts) > before and self.verdicts[-1].wanted:
            self.cancel(self.model.groups[self.verdicts[-1].ref])
        for place in range(before, len(self.verdicts) if at_once else before):
            self.settle(place)

    async def _decide(self) -> None:
        queue = self.queue
        for entry, fields in await queue.command("XRANGE", queue.keys.due, "-", "+"):
            ref = GroupRef(fields[1].decode())
            self.verdicts.append(settlement(entry.decode(), ref, await queue.group(ref)))

    @precondition(lambda self: self.verdicts)
    @rule(pick=picks)
    def settle(self, pick: int) -> None:
        """Also one that was made long ago, or applied before."""
        verdict = choose(self.verdicts, pick)
        due = self.command("XRANGE", self.queue.keys.due, verdict.entry, verdict.entry)
        now = (self.command("HGET", self.queue.keys.group(verdict.ref), "changes") or b"").decode()
        answer = self.do(self.queue.store.settle(verdict, linger_ms=LINGER_MS))
        if not due:
            assert answer == "already"
            return
        group = self.model.groups[verdict.ref]
        if verdict.changes != now:
            assert answer == "moved"
            return
        wanted, decided = group.decision(withdrawn=group.withdrawn)
        if verdict.wanted:
            assert (answer, verdict.wanted) == ("refilled", wanted)
            self.model.refill(group, wanted)
        else:
            assert verdict.verdict == decided
            self.model.publish(group, answer)
            self._check_record(group)

    def _check_record(self, group: Group) -> None:
        [(_, fields)] = self.command("XRANGE", self.queue.keys.results(RUN), group.cursor, group.cursor)
        published = decode(fields[1], GroupRecord)
        assert [(sample.index, sample.outcome) for sample in published.samples] == sorted(group.outcomes.items())
        assert len(published.samples) == group.next
