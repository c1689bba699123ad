"""The Redis heap as the agent sees it: a backend for each attempt, assigned at its first call."""

import asyncio
from collections.abc import Set as AbstractSet

import msgspec

from prorl_mq.backends import BackendInfo as Known
from prorl_mq.backends import announced
from prorl_mq.broker import Broker
from prorl_mq.clock import monotonic
from prorl_mq.codec import decode
from workers.inference.assignment import BackendInfo, WireProtocol
from workers.inference.clients import InferenceClients
from workers.inference.policy import StickyPolicy
from workers.inference.probe import probe
from workers.inference.protocol import InferenceError, NoBackend
from workers.work import Work

FIRST_WAIT_S, LONGEST_WAIT_S = 0.2, 2.0
SHUNNED_S = 5.0  # how long a backend that failed here is left alone, if there is another


class Backends:
    """What this process knows of backends: their protocol, once probed, and which failed just now."""

    def __init__(self, broker: Broker, clients: InferenceClients) -> None:
        self.broker = broker
        self.clients = clients
        self._probed: dict[str, BackendInfo] = {}
        self._shunned: dict[str, float] = {}

    def policy(self, work: Work) -> StickyPolicy:
        """The policy for one attempt."""
        return StickyPolicy(
            job_id=work.held.ref, token=int(work.held.token), assigner=HeapAssigner(self, work), clients=self.clients
        )

    def shun(self, address: str) -> None:
        self._shunned[address] = monotonic() + SHUNNED_S
        self._probed.pop(address, None)  # it may come back as something else

    def shunned(self) -> set[str]:
        now = monotonic()
        return {address for address, until in self._shunned.items() if until > now}

    async def describe(self, known: Known) -> BackendInfo:
        """How to talk to a backend. Raises `InferenceError` if it does not answer its probe."""
        if known.address not in self._probed:
            if known.protocol:
                info = BackendInfo(address=known.address, protocol=WireProtocol(known.protocol), model=known.model)
            else:
                info = (await probe(self.clients, known.address, model=known.model)).info
            self._probed[known.address] = info
        return self._probed[known.address]


class HeapAssigner:
    """Implements `workers.inference.assignment.Assigner` for one attempt of one job."""

    def __init__(self, backends: Backends, work: Work) -> None:
        self._backends = backends
        self._work = work

    async def assign(self, job_id: str, token: int, *, exclude: AbstractSet[str]) -> BackendInfo:
        """Waits while the pool has no backend at all: the trainer may bring one. Cancelled with its job."""
        del job_id, token  # both are this work's
        wait_s = FIRST_WAIT_S
        shunned = {*exclude, *self._backends.shunned()}
        while True:
            found = await self._ask(shunned) or (await self._ask(set(exclude)) if shunned != set(exclude) else None)
            if found is not None:
                version = await announced(self._backends.broker, self._work.spec.pool)
                salt = None if version is None else f"policy-{version}"
                return msgspec.structs.replace(await self._describe(found), cache_salt=salt)
            if exclude:
                raise NoBackend(f"pool {self._work.spec.pool!r} has no other backend than {', '.join(sorted(exclude))}")
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    async def report_failure(self, address: str, error: InferenceError) -> None:
        del error  # the policy keeps it for its own answer
        self._backends.shun(address)

    async def _ask(self, exclude: set[str]) -> Known | None:
        broker, held = self._backends.broker, self._work.held
        answer = await broker.assign(held, exclude=sorted(exclude))
        match answer[0]:
            case b"stale":
                raise InferenceError(f"job {held.ref}: its lease is lost, so it gets no backend")
            case b"none":
                return None
            case _:
                return decode(answer[2], Known)

    async def _describe(self, known: Known) -> BackendInfo:
        try:
            return await self._backends.describe(known)
        except InferenceError:
            self._backends.shun(known.address)
            raise
