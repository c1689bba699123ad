"""What may happen to a pool: backends join, drain, leave and come back while jobs hold them."""

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from prorl_mq.schema.ids import group_of
from prorl_mq.schema.lifecycle import State
from prorl_mq.schema.messages import Stage
from prorl_mq.store.store import PREFERENCE_BOUND
from tests.properties.machine_core import BACKENDS, choose, picks
from tests.properties.machine_trainer import TrainerRules
from tests.support.queue import POOL

addresses = st.sampled_from(BACKENDS)


class PoolRules(TrainerRules):
    """Rules of the backends, and of the jobs that take them."""

    @precondition(lambda self: any(job.stage is Stage.RUN for job in self.jobs(State.LEASED)))
    @rule(pick=picks, exclude=st.sampled_from([(), BACKENDS[:1], BACKENDS]))
    def assign(self, pick: int, exclude: tuple[str, ...]) -> None:
        job = choose([job for job in self.jobs(State.LEASED) if job.stage is Stage.RUN], pick)
        answer = self.do(self.workers[job.worker].store.assign(self.hold(job), exclude=exclude, ramp_ms=0))
        if job.backend in self.model.backends and job.backend not in exclude:
            assert answer[:2] == [b"already", job.backend.encode()]
            return
        ready = {address for address, draining in self.model.backends.items() if not draining} - set(exclude)
        if not ready:
            assert answer == [b"none"]
            return
        load = {address: self._held()[address] for address in ready}
        group = self.model.groups[group_of(job.ref)]
        assert answer[0] == b"assigned"
        job.backend = answer[1].decode()
        assert load[job.backend] <= min(load.values()) + PREFERENCE_BOUND
        if load[job.backend] > min(load.values()):
            assert job.backend in group.warm, "only one that has served the group may be busier"
        group.warm.add(job.backend)

    @rule(address=addresses)
    def join(self, address: str) -> None:
        known = address in self.model.backends
        assert self.do(self.queue.store.join(POOL, address, b"about it")) == ("known" if known else "joined")
        self.model.backends[address] = False
        self.model.leaving.discard(address)

    @rule(address=addresses, drain=st.booleans(), sweep=st.booleans())
    def leave(self, address: str, drain: bool, sweep: bool) -> None:
        answer = self.do(self.queue.store.leave(POOL, address, reason="test", drain=drain, sweep=sweep))
        held = self._held()[address]
        if address not in self.model.backends:
            assert answer == "unknown"
            if not held:
                self.model.leaving.discard(address)
        elif sweep and not self.model.backends[address]:
            assert answer == "kept"
        elif drain and held:
            assert answer == "draining"
            self.model.backends[address] = True
        else:
            assert answer == "left"
            del self.model.backends[address]
            if held:
                self.model.leaving.add(address)

    def _held(self) -> Counter[str]:
        return Counter(job.backend for job in self.model.jobs.values() if job.live and job.backend)
