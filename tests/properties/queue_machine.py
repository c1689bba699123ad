"""A Hypothesis machine that does to a real queue whatever can be done to it, beside a model of it."""

import asyncio
from collections.abc import Coroutine
from typing import Any, NamedTuple, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from prorl_mq import cancellation, results
from prorl_mq.broker import renewal
from prorl_mq.codec import decode
from prorl_mq.ids import EntryId, GroupRef, Token, group_of
from prorl_mq.lifecycle import State, Verb
from prorl_mq.maintenance.reaping import decide
from prorl_mq.maintenance.settlement import settlement
from prorl_mq.maintenance.timers import Expiry, Promotion
from prorl_mq.messages import GroupRecord, Limits, Outcome, Stage
from prorl_mq.moves import Advance, Entry, Fail, Finish, Held, Reap, Settlement, Wanted
from prorl_mq.scripts import script
from tests.support.model import HELD, Group, Job, Model, differences
from tests.support.queue import LINGER_MS, POOL, RUN, Queue, record, spec
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


class QueueMachine(RuleBasedStateMachine):
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
            await self.queue.broker.join(POOL, address, b"about it")

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def jobs(self, *states: State) -> list[Job]:
        return [job for job in self.model.jobs.values() if job.state in states]

    def unread(self) -> list[Job]:
        return [job for job in self.jobs(State.QUEUED) if not job.read]

    def hold(self, job: Job) -> Held:
        return Held(job.ref, Token(job.token), EntryId(job.entry), job.stage, job.node, POOL)

    # ---- the trainer

    @initialize(n=st.integers(1, 3), refills=st.integers(0, 2))
    def begin_with_some_jobs(self, n: int, refills: int) -> None:
        for name in "ab":
            self.submit(name, 0, n, refills)
            self.admit(0)

    @precondition(lambda self: len(self.model.groups) < 3)
    @rule(name=st.sampled_from("abc"), batch=st.integers(0, 1), n=st.integers(1, 3), refills=st.integers(0, 2))
    def submit(self, name: str, batch: int, n: int, refills: int) -> None:
        about: dict[str, Any] = {"batch": f"{name}{batch}", "n": n, "max_refills": refills, "limits": LIMITS}
        made, group = self.queue.new(name, **about)
        expected = self.model.submit(group.ref, about["batch"], group.digest, n, refills)
        assert self.do(self.queue.broker.submit(made, [group])) == [expected]

    @precondition(lambda self: any(group.cursor for group in self.model.groups.values()))
    @rule(pick=picks, twice=st.booleans())
    def ack(self, pick: int, twice: bool) -> None:
        group = choose([group for group in self.model.groups.values() if group.cursor], pick)
        assert self.do(results.acknowledge(self.queue.broker, RUN, [group.cursor])) == 1
        if twice:
            assert self.do(results.acknowledge(self.queue.broker, RUN, [group.cursor])) == 0
        self.model.acked(group)

    @precondition(lambda self: self.model.jobs and self.model.groups)
    @rule(pick=picks, really=seldom)
    def cancel_job(self, pick: int, really: bool) -> None:
        open_jobs = [job for job in self.model.jobs.values() if group_of(job.ref) in self.model.groups]
        if open_jobs and really:
            job = choose(open_jobs, pick)
            answer = self.do(cancellation.cancel(self.queue.broker, "job", job.ref))
            assert answer.jobs == self.model.stop(job, Outcome.CANCELLED, "cancel")

    @precondition(lambda self: self.model.groups)
    @rule(pick=picks, really=seldom)
    def cancel_group(self, pick: int, really: bool) -> None:
        if not really:
            return
        group = choose(list(self.model.groups.values()), pick)
        answer = self.do(cancellation.cancel(self.queue.broker, "group", group.ref))
        assert answer.jobs == self._cancelled(group)

    @precondition(lambda self: self.model.stored)
    @rule(really=seldom)
    def cancel_run(self, really: bool) -> None:
        if really:
            answer = self.do(cancellation.cancel(self.queue.broker, "run", RUN))
            assert answer.jobs == sum([self._cancelled(group) for group in self.model.groups.values()])

    def _cancelled(self, group: Group) -> int:
        if group.cursor:
            return 0
        self.model.withdraw(group)
        return sum([self.model.stop(job, Outcome.CANCELLED, "cancel") for job in self.model.of(group)])

    # ---- a worker

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
        for job in waiting[:count]:
            job.read = True
        found = [Unclaimed(worker, stage, node, entry) for entry in entries]
        self.unclaimed += found
        return found

    @precondition(lambda self: self.unclaimed)
    @rule(pick=picks)
    def claim_late(self, pick: int) -> None:
        self._claim(choose(self.unclaimed, pick))

    @precondition(lambda self: self.unread())
    @rule(pick=picks, worker=workers, count=st.integers(1, 4))
    def take(self, pick: int, worker: str, count: int) -> None:
        job = choose(self.unread(), pick)
        for each in self._read(job.stage, job.node, worker, count):
            self._claim(each)

    @precondition(lambda self: self.unread())
    @rule(worker=workers, node=st.sampled_from(NODES), moves=st.integers(1, 4), crashes=st.booleans())
    def work(self, worker: str, node: str | None, moves: int, crashes: bool) -> None:
        """A worker's ordinary days, so that jobs get far; it may die holding the last one."""
        for left in reversed(range(moves)):
            if self.unread():
                self.take(left, worker, 2)
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
        elif job.overdue:
            assert claim.status == "expired"
        else:
            assert claim.status == "claimed"
            assert int(claim.token) > int(job.token or 0)
            assert (claim.attempts, claim.deaths, claim.releases) == (job.attempts, job.deaths, job.releases)
            job.state, job.read, job.token = State.LEASED, False, claim.token
            self.holds.append(self.hold(job))
            again = self.do(self.workers[worker].claim(stage, [entry], node))
            assert again == [claim._replace(status="already")]

    @precondition(lambda self: self.holds)
    @rule(pick=picks)
    def renew(self, pick: int) -> None:
        held = choose(self.holds, pick)
        job = self.model.jobs[held.ref]
        made = renewal(self.queue.keys, "w1", {"stage": "run"}, [(held.ref, held.token)], lease_ms=60_000)
        [answer] = self.do(script("renew")(self.queue.redis, made.keys, made.arguments))
        if job.token == held.token and job.state in HELD:
            assert answer.decode() == (job.ending or "held")
            job.lapsed = False
        else:
            assert answer == b"lost"

    @precondition(lambda self: any(job.stage is Stage.RUN for job in self.jobs(State.LEASED)))
    @rule(pick=picks, exclude=st.sampled_from([(), BACKENDS[:1], BACKENDS]))
    def assign(self, pick: int, exclude: tuple[str, ...]) -> None:
        job = choose([job for job in self.jobs(State.LEASED) if job.stage is Stage.RUN], pick)
        allowed = set(BACKENDS) - set(exclude)
        answer = self.do(self.queue.broker.assign(self.hold(job), exclude=exclude))
        if job.backend in allowed:
            assert answer[:2] == [b"already", job.backend.encode()]
        elif not allowed:
            assert answer == [b"none"]
        else:
            load = {address: sum(job.backend == address for job in self.jobs(*HELD)) for address in allowed}
            assert answer[0] == b"assigned"
            job.backend = answer[1].decode()
            assert load[job.backend] == min(load.values())

    @precondition(lambda self: any(job.stage is not Stage.EVAL for job in self.jobs(State.LEASED)))
    @rule(pick=picks, node=st.sampled_from(NODES), size=st.integers(0, 100))
    def advance(self, pick: int, node: str | None, size: int) -> None:
        job = choose([job for job in self.jobs(State.LEASED) if job.stage is not Stage.EVAL], pick)
        after = Stage.RUN if job.stage is Stage.INIT else Stage.EVAL
        node, size = (node, 0) if after is Stage.RUN else (None, size)
        assert self.do(self.queue.broker.advance([Advance(self.hold(job), node, b"c", "", size)])) == ["advanced"]
        job.committed.add(job.token)
        job.queue(after, node)
        job.bytes += size

    @precondition(lambda self: self.jobs(State.LEASED))
    @rule(pick=picks)
    def release(self, pick: int) -> None:
        job = choose(self.jobs(State.LEASED), pick)
        assert self.do(self.queue.broker.release([self.hold(job)])) == ["released"]
        job.committed.add(job.token)
        job.queue(job.stage, job.node)
        job.releases += 1

    @precondition(lambda self: self.jobs(State.LEASED))
    @rule(pick=picks, counts=st.booleans())
    def fail(self, pick: int, counts: bool) -> None:
        job = choose(self.jobs(State.LEASED), pick)
        stage = Stage.EVAL if job.stage is Stage.EVAL else Stage.INIT
        assert self.do(self.queue.broker.fail([Fail(self.hold(job), stage, 60_000, "it broke", counts)])) == ["delayed"]
        job.committed.add(job.token)
        job.queue(stage)
        job.state = State.DELAYED
        job.attempts += counts
        job.releases += not counts

    @precondition(lambda self: self.jobs(State.LEASED))
    @rule(pick=picks, outcome=ends)
    def finish(self, pick: int, outcome: Outcome) -> None:
        job = choose(self.jobs(State.LEASED), pick)
        finish = Finish(self.hold(job), outcome, record(job.ref, outcome))
        assert self.do(self.queue.broker.finish([finish])) == ["finished"]
        job.committed.add(job.token)
        self.model.end(job, outcome)

    @precondition(lambda self: self.jobs(State.STOPPING))
    @rule(pick=picks)
    def confirm(self, pick: int) -> None:
        job = choose(self.jobs(State.STOPPING), pick)
        ended = record(job.ref, Outcome(job.ending))
        assert self.do(self.queue.broker.confirm(self.hold(job), ended)) == "confirmed"
        job.committed.add(job.token)
        self.model.end(job, job.ending)

    @precondition(lambda self: self.holds)
    @rule(pick=picks, verb=st.sampled_from([Verb.ADVANCE, Verb.RELEASE, Verb.FAIL, Verb.FINISH, Verb.CONFIRM]))
    def commit_what_is_over(self, pick: int, verb: Verb) -> None:
        """The last commit once more, or one whose lease was lost: refused, whatever it is."""
        held = choose(self.holds, pick)
        job = self.model.jobs[held.ref]
        state = State.STOPPING if verb is Verb.CONFIRM else State.LEASED
        if job.token == held.token and job.state is state:
            return
        answer = self.do(self._commit(verb, held))
        if held.token in job.committed:
            assert answer == "already"
        else:
            assert answer == (job.state if job.token == held.token else "stale")

    async def _commit(self, verb: Verb, held: Held) -> str:
        broker = self.queue.broker
        match verb:
            case Verb.ADVANCE:
                return (await broker.advance([Advance(held, None, b"late", "", 7)]))[0]
            case Verb.RELEASE:
                return (await broker.release([held]))[0]
            case Verb.FAIL:
                return (await broker.fail([Fail(held, Stage.INIT, 1, "late")]))[0]
            case Verb.FINISH:
                return (await broker.finish([Finish(held, Outcome.COMPLETED, record(held.ref))]))[0]
            case _:
                return await broker.confirm(held, record(held.ref))

    # ---- time and maintenance

    @precondition(lambda self: any(group.backlog for group in self.model.groups.values()))
    @rule(pick=picks)
    def admit(self, pick: int) -> None:
        group = choose([group for group in self.model.groups.values() if group.backlog], pick)
        seen = Wanted(group.ref, group.next, group.wanted, 3_600_000)
        assert self.do(self.queue.broker.admit(RUN, [seen])) == [group.wanted]
        self.model.admit(group)
        assert self.do(self.queue.broker.admit(RUN, [seen])) == [-1]

    @precondition(lambda self: self.jobs(*HELD))
    @rule(pick=picks)
    def let_a_lease_lapse(self, pick: int) -> None:
        job = choose(self.jobs(*HELD), pick)
        if not job.lapsed:
            self.do(self.queue.overdue(job.ref))
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
        job = choose([job for job in self.jobs(State.QUEUED) if job.read], pick)
        assert self._reap(job, leased=False) == "requeued"
        job.queue(job.stage, job.node)

    def _reap(self, job: Job, *, leased: bool) -> str:
        state, item = decide(self.do(self.queue.snapshot(job.ref)), spec(limits=LIMITS), leased=leased)
        [answer] = self.do(self.queue.broker.reap(Verb.REAP, state, [item]))
        return answer

    @precondition(lambda self: any(job.node for job in self.jobs(State.QUEUED)))
    @rule(pick=picks)
    def evacuate(self, pick: int) -> None:
        job = choose([job for job in self.jobs(State.QUEUED) if job.node], pick)
        stream = self.queue.keys.prefix + job.stream
        item = Reap(job.ref, job.token, job.entry, stream, Stage.INIT, POOL, leased=False, deaths=0)
        assert self.do(self.queue.broker.reap(Verb.EVACUATE, State.QUEUED, [item])) == ["requeued"]
        job.queue(Stage.INIT)

    @precondition(lambda self: self.jobs(State.DELAYED))
    @rule(pick=picks, due=st.booleans())
    def promote(self, pick: int, due: bool) -> None:
        job = choose(self.jobs(State.DELAYED), pick)
        if due:
            self.do(self.queue.backed_off(job.ref))
            job.queue(job.stage)
        self.do(Promotion(self.queue.broker).turn())

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
        self.do(Expiry(self.queue.broker).turn())
        for job in list(self.model.jobs.values()):
            if job.overdue and job.timer:
                self.model.stop(job, Outcome.EXPIRED, "expire")

    @precondition(lambda self: any(group.due for group in self.model.groups.values()))
    @rule(at_once=st.booleans())
    def decide_on_what_is_due(self, at_once: bool) -> None:
        before = len(self.verdicts)
        self.do(self._decide())
        for place in range(before, len(self.verdicts) if at_once else before):
            self.settle(place)

    async def _decide(self) -> None:
        queue = self.queue
        for entry, fields in await queue.command("XRANGE", queue.keys.due, "-", "+"):
            ref = GroupRef(fields[1].decode())
            row = await queue.command("HGETALL", queue.keys.group(ref))
            self.verdicts.append(settlement(entry.decode(), ref, row, await queue.command("GET", queue.keys.open(ref))))

    @precondition(lambda self: self.verdicts)
    @rule(pick=picks)
    def settle(self, pick: int) -> None:
        """Also one that was made long ago, or applied before."""
        verdict = choose(self.verdicts, pick)
        due = self.do(self.queue.command("XRANGE", self.queue.keys.due, verdict.entry, verdict.entry))
        answer = self.do(self.queue.broker.settle(verdict, linger_ms=LINGER_MS))
        if not due:
            assert answer in {"already", "withdrawn"}
            return
        group = self.model.groups[verdict.ref]
        wanted, decided = group.decision()
        if verdict.wanted and group.withdrawn:
            assert answer == "withdrawn"
        elif verdict.wanted:
            assert (answer, verdict.wanted) == ("refilled", wanted)
            self.model.refill(group, wanted)
        else:
            assert verdict.verdict == decided
            self.model.publish(group, answer)
            self._check_record(group)

    def _check_record(self, group: Group) -> None:
        [(_, fields)] = self.do(self.queue.command("XRANGE", self.queue.keys.results(RUN), group.cursor, group.cursor))
        published = decode(fields[1], GroupRecord)
        assert [(sample.index, sample.outcome) for sample in published.samples] == sorted(group.outcomes.items())
        assert len(published.samples) == group.next

    # ---- what always holds

    @invariant()
    def the_server_is_as_the_model_says(self) -> None:
        found = self.do(look(self.queue.redis, self.queue.keys))
        assert differences(self.model, found) == []

    def teardown(self) -> None:
        """Drains everything: then each group has been published once, and nothing is left that should have gone."""
        for _ in range(40):
            if not any(not group.cursor for group in self.model.groups.values()):
                break
            self._drain()
            self.the_server_is_as_the_model_says()
        assert all(self.model.published[batch] == 1 for batch in self.model.stored)
        for group in list(self.model.groups.values()):
            assert self.do(results.acknowledge(self.queue.broker, RUN, [group.cursor])) == 1
            self.do(self.queue.sweep(group.cursor))
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
        for job in self.jobs(State.DELAYED):
            self.promote(self.jobs(State.DELAYED).index(job), due=True)
        self.the_server_is_as_the_model_says()
        for job in self.jobs(State.QUEUED):
            if job.read:
                assert self._reap(job, leased=False) == "requeued"
                job.queue(job.stage, job.node)
        self.the_server_is_as_the_model_says()
        while self.unread():
            self.take(0, "w1", 64)
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


PERMANENT = frozenset({
    "stage", "leases", "delayed", "deadlines", "due", "bell", "cancels", "events", "workers", "runs", "lanes", "pool",
    "pools", "bytes",
})  # fmt: skip


def choose(candidates: list[T], pick: int) -> T:
    return candidates[pick % len(candidates)]
