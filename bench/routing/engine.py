"""A simulated backend: continuous batching, a cache of blocks with the least recently used ones evicted, preemption.

A step gives each running request one token. A request that does not fit waits, first come first served; one that cannot
grow preempts the newest. Blocks of ended requests stay, the last ones of a sequence go first, as in vLLM.
"""

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final

import msgspec

SEQUENCES: Final = 256  # at once, vLLM's default


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """Constants of an engine, in the order of magnitude of a mid-size model on one GPU."""

    tokens: int = 600_000  # that its cache has room for
    step_s: float = 0.012
    sequence_s: float = 0.03e-3  # of a step, for each sequence
    token_s: float = 30e-9  # of a step, for each token in the cache of a running request
    prefill: float = 25_000.0  # tokens a second
    watermark: float = 0.01  # of the cache, that is kept free when a request begins


class Clock:
    """Virtual time, and what happens when."""

    def __init__(self) -> None:
        self.now = 0.0
        self._order = count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._due, (max(when, self.now), next(self._order), act))

    def run(self, until: float) -> None:
        while self._due and self._due[0][0] <= until:
            self.now, _, act = heapq.heappop(self._due)
            act()
        self.now = until


class Request:
    """One turn on a backend. `blocks` name the whole sequence, the answer's included, in order."""

    def __init__(self, blocks: Sequence[int], prompt: int, answer: int, ended: Callable[["Request"], None]) -> None:
        self.blocks, self.prompt, self.answer, self.ended = blocks, prompt, answer, ended
        self.tokens = prompt  # of its sequence, so far
        self.goal = prompt + answer
        self.held = 0  # blocks
        self.cached: int | None = None  # tokens of the prompt that were there when it began
        self.number = 0  # of its admission
        self.began_step = 0


class Engine:
    """One backend on a virtual clock."""

    def __init__(self, clock: Clock, address: str, costs: Costs, block: int, speed: float = 1.0) -> None:
        self.clock, self.address, self.costs, self.block, self.speed = clock, address, costs, block, speed
        self.room = costs.tokens // block
        self.waiting = deque[Request]()
        self.running: dict[int, Request] = {}
        self.preempted = self.prompts = self.hits = 0
        self._held: dict[int, int] = {}
        self._free: OrderedDict[int, None] = OrderedDict()
        self._step = 0
        self._at = 0.0  # time of the last whole step
        self._turn = 0  # version of the next event
        self._numbers = count(1)
        self._marks: list[tuple[int, int]] = []  # steps at which a request needs a block, or ends

    @property
    def usage(self) -> float:
        return len(self._held) / self.room

    def submit(self, request: Request) -> None:
        self._catch_up()
        self.waiting.append(request)
        self._admit()
        self._plan()

    def restart(self) -> None:
        """Loses its cache and computes everything that runs again."""
        self._catch_up()
        for request in sorted(self.running.values(), key=lambda each: -each.number):
            self._stop(request)
        self._free.clear()
        self._admit()
        self._plan()

    def _step_s(self) -> float:
        costs = self.costs
        cached = len(self._held) * self.block
        return (costs.step_s + costs.sequence_s * len(self.running) + costs.token_s * cached) / self.speed

    def _catch_up(self) -> None:
        """Whole steps that are over by now."""
        now = self.clock.now
        if not self.running:
            self._at = max(self._at, now)
            return
        steps = max(0, int((now - self._at) / self._step_s() + 1e-9))
        if self._marks:
            steps = min(steps, max(0, self._marks[0][0] - self._step))
        self._step += steps
        self._at += steps * self._step_s()

    def _plan(self) -> None:
        self._turn += 1
        turn = self._turn
        while self._marks and self._marks[0][1] not in self.running:
            heapq.heappop(self._marks)
        if self._marks:
            self.clock.at(self._at + (self._marks[0][0] - self._step) * self._step_s(), lambda: self._reach(turn))

    def _reach(self, turn: int) -> None:
        if turn != self._turn:
            return
        self._step, self._at = max(self._step, self._marks[0][0]), max(self._at, self.clock.now)
        ended = []
        while self._marks and self._marks[0][0] <= self._step:
            request = self.running.get(heapq.heappop(self._marks)[1])
            if request is None:
                continue
            request.tokens += self._step - request.began_step
            request.began_step = self._step
            if request.tokens >= request.goal:
                del self.running[request.number]
                self._let_go(request)
                ended.append(request)
            else:
                self._grow(request)
        self._admit()
        self._plan()
        for request in ended:
            request.ended(request)

    def _grow(self, request: Request) -> None:
        while request.number in self.running and not self._take(request):
            self.preempted += 1
            self._stop(self.running[max(self.running)])
        if request.number in self.running:
            self._mark(request)

    def _mark(self, request: Request) -> None:
        left = min(request.goal, request.held * self.block + 1) - request.tokens
        heapq.heappush(self._marks, (self._step + max(1, left), request.number))

    def _take(self, request: Request) -> bool:
        """One more block for a request, if there is one."""
        name = request.blocks[request.held]
        if name in self._held:
            self._held[name] += 1
        elif name in self._free:
            del self._free[name]
            self._held[name] = 1
        else:
            if len(self._held) + len(self._free) >= self.room:
                if not self._free:
                    return False
                self._free.popitem(last=False)
            self._held[name] = 1
        request.held += 1
        return True

    def _stop(self, request: Request) -> None:
        """It waits in front; its tokens so far are a part of its prompt then."""
        request.tokens += self._step - request.began_step
        del self.running[request.number]
        self._let_go(request)
        self.waiting.appendleft(request)

    def _let_go(self, request: Request) -> None:
        whole = request.tokens // self.block
        for place in range(request.held - 1, -1, -1):
            name = request.blocks[place]
            self._held[name] -= 1
            if not self._held[name]:
                del self._held[name]
                if place < whole:
                    self._free[name] = None
        request.held = 0

    def _admit(self) -> None:
        spare = int(self.costs.watermark * self.room)
        while self.waiting and len(self.running) < SEQUENCES:
            request = self.waiting[0]
            need = -(-request.tokens // self.block)
            hits = 0
            while hits < (request.tokens - 1) // self.block and (
                request.blocks[hits] in self._held or request.blocks[hits] in self._free
            ):
                hits += 1
            shared = sum(name in self._held for name in request.blocks[:hits])
            if self.running and len(self._held) + need - shared > self.room - spare:
                return
            self.waiting.popleft()
            for _ in range(need):
                self._take(request)
            if request.cached is None:
                request.cached = hits * self.block
                self.prompts += request.tokens
                self.hits += hits * self.block
            self._at = (
                max(self._at, self.clock.now) + (request.tokens - hits * self.block) / self.costs.prefill / self.speed
            )
            request.number, request.began_step = next(self._numbers), self._step
            self.running[request.number] = request
            self._mark(request)
