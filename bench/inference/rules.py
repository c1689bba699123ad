"""Ways to choose a backend for a job: ours, and two that others use."""

import heapq
from collections.abc import Callable
from collections.abc import Set as AbstractSet

from workers.inference.assignment import Endpoint, TurnUnderWay, WireProtocol
from workers.inference.protocol import Completion, InferenceError, NoBackend


class RoundRobin:
    """Each job goes to the next backend in turn."""

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self._next = 0

    def choose(self, exclude: AbstractSet[str]) -> str:
        """Raises `NoBackend`."""
        for _ in range(len(self.addresses)):
            self._next = (self._next + 1) % len(self.addresses)
            if self.addresses[self._next] not in exclude:
                return self.addresses[self._next]
        raise NoBackend("every backend has failed")

    def join(self, address: str) -> None:
        self.addresses.append(address)


class EverAssigned:
    """ProRL's heap: the backend with the fewest jobs ever assigned. What has ended is never subtracted."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []

    def choose(self, exclude: AbstractSet[str]) -> str:
        """Raises `NoBackend`."""
        allowed = [each for each in self._heap if each[1] not in exclude]
        if not allowed:
            raise NoBackend("every backend has failed")
        count, address = min(allowed)
        self._heap[self._heap.index((count, address))] = (count + 1, address)
        heapq.heapify(self._heap)
        return address

    def join(self, address: str) -> None:
        heapq.heappush(self._heap, (0, address))


class Chosen:
    """Implements `Assigner` for one job by one of the rules above; a failed backend is passed over in its call."""

    def __init__(self, choose: Callable[[AbstractSet[str]], str]) -> None:
        self._choose = choose

    async def assign(self, job_id: str, token: str, *, exclude: AbstractSet[str]) -> Endpoint:
        del job_id, token
        address = self._choose(exclude)
        return Endpoint(address=address, protocol=WireProtocol.VLLM_GENERATE, model="policy")

    async def room(self, backend: Endpoint, turn: TurnUnderWay, patience_s: float) -> Endpoint:
        del turn, patience_s
        return backend

    def ended(self, turn: TurnUnderWay) -> None:
        """Neither rule counts it."""

    async def ready(self, backend: Endpoint) -> Endpoint:
        return backend

    async def version(self, address: str) -> str | None:  # noqa: ARG002 - the name is the protocol's
        return None

    async def report_failure(self, address: str, error: InferenceError) -> None:
        """Neither rule remembers it."""

    async def report_success(self, address: str, completion: Completion) -> None:
        """Neither rule remembers it."""
