"""Sessions on simulated backends under one rule: what comes of it."""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle

import msgspec

from bench.routing.engine import Clock, Costs, Engine, Request
from bench.routing.policies import ASK_S, LOOK_S, Rule
from bench.routing.workload import Session
from prorl_mq.rules.routing import room

WINDOW_S = 60.0


class Disturbance(msgspec.Struct, frozen=True, kw_only=True):
    """What goes wrong with backends."""

    restart_s: float = 0.0  # one loses its cache so often; 0: never
    speeds: Sequence[float] = ()  # of the backends, where they differ
    tick_s: float = 0.0  # all tools answer on such a tick


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Figures behind the warm-up."""

    tokens_s: float  # of answers that were completed
    sessions_h: float
    hits: float  # of prompts' tokens
    preempted: int
    worst_hits: float  # of the windows of a minute
    length: float  # turns of the sessions that ended over turns of those that began at the same time
    pace: float  # seconds a turn, waits included: of the longest third of sessions over those of the shortest
    longest_wait_s: float


class _Player:
    """One session under way."""

    def __init__(self, session: Session, began: float) -> None:
        self.session, self.name, self.group, self.began = session, session.name, session.group, began
        self.opening = session.steps[0].prompt
        self.backend: str | None = None
        self.turn = 0
        self.tokens = session.steps[0].prompt
        self.sampled = 0
        self.asked = began

    @property
    def expected(self) -> int:
        return room.expected(self.turn, self.sampled, self.sampled + room.UNHEARD)


class Simulation:
    """One run. `make` gives the rule for the engines."""

    def __init__(
        self,
        sessions: Iterator[Session],
        make: Callable[[Sequence[Engine]], Rule],
        *,
        costs: Costs,
        block: int,
        backends: int = 4,
        disturbance: Disturbance | None = None,
    ) -> None:
        self.clock, self.sessions = Clock(), sessions
        self.disturbance = disturbance or Disturbance()
        speeds = [*self.disturbance.speeds, *[1.0] * backends][:backends]
        self.engines = [Engine(self.clock, f"b{at}", costs, block, speed) for at, speed in enumerate(speeds)]
        self.by_address = {each.address: each for each in self.engines}
        self.rule = make(self.engines)
        self.parked = list[_Player]()
        self.under_way = 0
        self.ended: list[tuple[float, _Player]] = []
        self.began: list[_Player] = []
        self.turns: list[tuple[float, int, int, int]] = []  # when it began, prompt, cached, answer
        self.longest_wait_s = 0.0

    def run(self, until: float, warm_up: float) -> Result:
        self._fill()
        self._every(LOOK_S, lambda: self.rule.look(self.clock.now))
        self._every(ASK_S, self._ask)
        if self.disturbance.restart_s:
            order = cycle(self.engines)
            self._every(self.disturbance.restart_s, lambda: next(order).restart())
        self.clock.run(until)
        return self._result(until, warm_up)

    def _every(self, seconds: float, act: Callable[[], None]) -> None:
        def again() -> None:
            act()
            self.clock.at(self.clock.now + seconds, again)

        self.clock.at(self.clock.now + seconds, again)

    def _fill(self) -> None:
        while self.under_way < self.rule.slots:
            session = next(self.sessions, None)
            if session is None:
                return
            self.under_way += 1
            player = _Player(session, self.clock.now)
            self.began.append(player)
            self._begin(player)

    def _begin(self, player: _Player) -> None:
        player.asked = self.clock.now
        self._try([player])

    def _ask(self) -> None:
        """Turns that wait ask again, the oldest first."""
        parked, self.parked = self.parked, []
        self._try(parked)

    def _try(self, players: list[_Player]) -> None:
        for player, address in zip(players, self.rule.places(players, self.clock.now), strict=True):
            if address is None:
                self.parked.append(player)
                continue
            self.longest_wait_s = max(self.longest_wait_s, self.clock.now - player.asked)
            player.backend = address
            step = player.session.steps[player.turn]
            request = Request(
                player.session.blocks[player.turn], step.prompt, step.answer, partial(self._turned, player)
            )
            self.by_address[address].submit(request)

    def _turned(self, player: _Player, request: Request) -> None:
        step, now = player.session.steps[player.turn], self.clock.now
        self.turns.append((now, request.prompt, request.cached or 0, request.answer))
        player.turn += 1
        player.sampled += step.answer
        player.tokens = step.prompt + step.answer
        self.rule.ended(player, now)
        ready = now + step.tools_s
        if self.disturbance.tick_s:
            ready = math.ceil(ready / self.disturbance.tick_s) * self.disturbance.tick_s
        if player.turn == len(player.session.steps):
            self.rule.left(player)
            self.ended.append((now, player))
            self.under_way -= 1
            self._fill()
            return
        player.tokens = player.session.steps[player.turn].prompt
        self.clock.at(ready, lambda: self._begin(player))

    def _result(self, until: float, warm_up: float) -> Result:
        turns = [each for each in self.turns if each[0] >= warm_up]
        ended = [player for at, player in self.ended if at >= warm_up]
        windows = [
            [each for each in turns if start <= each[0] < start + WINDOW_S]
            for start in range(int(warm_up), int(until - WINDOW_S), int(WINDOW_S))
        ]
        offered = [len(each.session.steps) for each in self.began]
        return Result(
            tokens_s=sum(each[3] for each in turns) / (until - warm_up),
            sessions_h=3600 * len(ended) / (until - warm_up),
            hits=_hits(turns),
            worst_hits=min((_hits(each) for each in windows if each), default=0.0),
            preempted=sum(each.preempted for each in self.engines),
            length=statistics.fmean(len(each.session.steps) for each in ended) / statistics.fmean(offered)
            if ended
            else 0.0,
            pace=_pace(sorted((len(each.session.steps), at - each.began) for at, each in self.ended if at >= warm_up)),
            longest_wait_s=self.longest_wait_s,
        )


def _pace(sessions: Sequence[tuple[int, float]]) -> float:
    """Of turns and seconds of each session, the shortest first."""
    third = len(sessions) // 3
    if not third:
        return 0.0
    short, long = (sum(each[1] for each in few) / sum(each[0] for each in few)
                   for few in (sessions[:third], sessions[-third:]))  # fmt: skip
    return long / short


def _hits(turns: Sequence[tuple[float, int, int, int]]) -> float:
    return sum(each[2] for each in turns) / max(1, sum(each[1] for each in turns))
