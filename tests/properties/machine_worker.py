"""What workers may do: read, claim, crash, renew, commit, and commit what is no longer theirs."""

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from prorl_mq.schema.items import Advance, Fail, Finish, Held
from prorl_mq.schema.lifecycle import State, Verb
from prorl_mq.schema.messages import Outcome, Stage
from prorl_mq.store.store import Store, renewal
from tests.properties.machine_core import NODES, Unclaimed, choose, ends, picks, workers
from tests.properties.machine_pool import PoolRules
from tests.support.model import HELD, Job
from tests.support.queue import lease_of, record


class WorkerRules(PoolRules):
    """Rules of the workers' side."""

    @precondition(lambda self: self.unread())
    @rule(pick=picks, worker=workers, count=st.integers(1, 2))
    def read_and_crash(self, pick: int, worker: str, count: int) -> None:
        """What was read is known to nobody but the pending list, until the worker claims it after all."""
        job = choose(self.unread(), pick)
        self._read(job.stage, job.node, worker, count)

    def _read(self, stage: Stage, node: str | None, worker: str, count: int) -> list[Unclaimed]:
        waiting = [job for job in self.unread() if (job.stage, job.node) == (stage, node)]
        waiting.sort(key=lambda job: [int(part) for part in job.entry.split("-")])
        entries = self.do(self.workers[worker].read(stage, node, count))
        assert [entry.ref for entry in entries] == [job.ref for job in waiting[:count]]
        for job, entry in zip(waiting[:count], entries, strict=True):
            job.read, job.worker = True, worker
            assert entry.claim is not None
            told = entry.claim
            assert (told.token, told.deaths, told.attempts) == (job.token, job.deaths, job.attempts)
            self.holds.append(self.hold(job))
        found = [Unclaimed(worker, stage, node, entry) for entry in entries]
        self.unclaimed += found
        return found

    @precondition(lambda self: self.unclaimed)
    @rule(pick=picks)
    def claim_late(self, pick: int) -> None:
        self._claim(choose(self.unclaimed, pick))

    @precondition(lambda self: self.unread())
    @rule(pick=picks, worker=workers, count=st.integers(1, 4), calls=st.booleans())
    def take(self, pick: int, worker: str, count: int, calls: bool) -> None:
        """Reads, claims and, in RUN, reserves a backend for the first call."""
        job = choose(self.unread(), pick)
        for each in self._read(job.stage, job.node, worker, count):
            self._claim(each)
        if calls and job.stage is Stage.RUN and job.state is State.LEASED:
            running = [job for job in self.jobs(State.LEASED) if job.stage is Stage.RUN]
            self.assign(running.index(job), ())

    @precondition(lambda self: self.unread())
    @rule(worker=workers, node=st.sampled_from(NODES), moves=st.integers(1, 4), crashes=st.booleans())
    def work(self, worker: str, node: str | None, moves: int, crashes: bool) -> None:
        """A worker's ordinary days, so that jobs get far; it may die holding the last one."""
        for left in reversed(range(moves)):
            if self.unread():
                self.take(left, worker, 2, calls=True)
            if self.jobs(State.LEASED) and (left or not crashes):
                job = self.jobs(State.LEASED)[0]
                if job.stage is Stage.EVAL:
                    self.finish(0, Outcome.COMPLETED)
                else:
                    self.advance(0, node, 10)
            self.the_server_is_as_the_model_says()

    def _claim(self, found: Unclaimed) -> None:
        worker, stage, node, entry = found
        self.unclaimed.remove(found)
        job = self.model.jobs[entry.ref]
        [claim] = self.do(self.workers[worker].claim(stage, [entry], node))
        current = (
            job.live and job.entry == entry.entry and job.stream == f"stage:{stage}" + (f"@{node}" if node else "")
        )
        if not current:
            assert claim.status == "stale"
        elif job.state is State.STOPPING:
            assert claim.status == "already"
        elif job.overdue:
            assert claim.status == "expired"
        else:
            assert claim.status == "claimed"
            assert claim.token == job.token
            assert (claim.attempts, claim.deaths, claim.releases) == (job.attempts, job.deaths, job.releases)
            job.state, job.read = State.LEASED, False
            again = self.do(self.workers[worker].claim(stage, [entry], node))
            assert again == [claim._replace(status="already")]

    @precondition(lambda self: self.holds)
    @rule(pick=picks, worker=workers)
    def renew(self, pick: int, worker: str) -> None:
        """A heartbeat, which also claims what its worker has read."""
        held = choose(self.holds, pick)
        job = self.model.jobs[held.ref]
        made = renewal(self.queue.keys, worker, {"stage": "run"}, [lease_of(held)], lease_ms=60_000)
        [answer] = self.do(self.queue.store.call("renew", made.keys, made.arguments))
        if job.token != held.token or job.worker != worker:
            assert answer == b"lost"
        elif job.read and job.overdue:
            assert answer == b"unleased"
        else:
            told = "pause" if job.marked and not job.read else "held"
            assert answer.decode() == (job.ending or told)
            job.state = State.LEASED if job.read else job.state
            job.read = job.lapsed = False

    @precondition(lambda self: any(job.stage is not Stage.EVAL for job in self.at_work()))
    @rule(pick=picks, node=st.sampled_from(NODES), size=st.integers(0, 100))
    def advance(self, pick: int, node: str | None, size: int) -> None:
        job = choose([job for job in self.at_work() if job.stage is not Stage.EVAL], pick)
        store = self._committed(job)
        after = Stage.RUN if job.stage is Stage.INIT else Stage.EVAL
        node, size = (node, 0) if after is Stage.RUN else (None, size)
        assert self.do(store.advance([Advance(self.hold(job), node, b"c", "", size)])) == ["advanced"]
        job.queue(after, node)
        job.bytes += 0 if job.marked else size

    @precondition(lambda self: self.at_work())
    @rule(pick=picks)
    def release(self, pick: int) -> None:
        job = choose(self.at_work(), pick)
        assert self.do(self._committed(job).release([self.hold(job)])) == ["released"]
        job.queue(job.stage, job.node)
        job.releases += 1

    @precondition(lambda self: self.at_work())
    @rule(pick=picks, counts=st.booleans())
    def fail(self, pick: int, counts: bool) -> None:
        job = choose(self.at_work(), pick)
        stage = Stage.EVAL if job.stage is Stage.EVAL else Stage.INIT
        failed = Fail(self.hold(job), stage, 60_000, "it broke", counts)
        assert self.do(self._committed(job).fail([failed])) == ["delayed"]
        job.queue(stage)
        job.state = State.PAUSED if job.marked else State.DELAYED
        job.attempts += counts
        job.releases += not counts

    @precondition(lambda self: self.at_work())
    @rule(pick=picks, outcome=ends)
    def finish(self, pick: int, outcome: Outcome) -> None:
        job = choose(self.at_work(), pick)
        finish = Finish(self.hold(job), outcome, record(job.ref, outcome))
        assert self.do(self._committed(job).finish([finish])) == ["finished"]
        self.model.end(job, outcome)

    def _committed(self, job: Job) -> Store:
        """Its worker's store, by which it is about to be committed."""
        job.committed[job.token] = job.worker
        return self.workers[job.worker].store

    @precondition(lambda self: self.jobs(State.STOPPING))
    @rule(pick=picks)
    def confirm(self, pick: int) -> None:
        job = choose(self.jobs(State.STOPPING), pick)
        ended = record(job.ref, Outcome(job.ending))
        assert self.do(self._committed(job).confirm(self.hold(job), ended)) == "confirmed"
        self.model.end(job, job.ending)

    @precondition(lambda self: self.holds)
    @rule(
        pick=picks,
        worker=workers,
        verb=st.sampled_from([Verb.ADVANCE, Verb.RELEASE, Verb.FAIL, Verb.FINISH, Verb.CONFIRM]),
    )
    def commit_what_is_over(self, pick: int, worker: str, verb: Verb) -> None:
        """The last commit once more, or one whose lease was lost: refused, whatever it is."""
        held = choose(self.holds, pick)
        job = self.model.jobs[held.ref]
        may = job.state is State.STOPPING if verb is Verb.CONFIRM else job in self.at_work()
        if job.token == held.token and may and job.worker == worker:
            return
        if job.token == held.token and job.read and verb is not Verb.CONFIRM:
            return  # the fence asks for the entry alone: two workers that have read it know of no claim
        answer = self.do(self._commit(verb, held, self.workers[worker].store))
        if held.token in job.committed:
            assert answer == ("already" if job.committed[held.token] == worker else "stale")
        elif job.token != held.token or (job.state in HELD and job.worker != worker):
            assert answer == "stale"
        else:
            assert answer == job.state

    async def _commit(self, verb: Verb, held: Held, store: Store) -> str:
        match verb:
            case Verb.ADVANCE:
                return (await store.advance([Advance(held, None, b"late", "", 7)]))[0]
            case Verb.RELEASE:
                return (await store.release([held]))[0]
            case Verb.FAIL:
                return (await store.fail([Fail(held, Stage.INIT, 1, "late")]))[0]
            case Verb.FINISH:
                return (await store.finish([Finish(held, Outcome.COMPLETED, record(held.ref))]))[0]
            case _:
                return await store.confirm(held, record(held.ref))
