"""EVAL of a patch: what its tests say, whose fault it is when they cannot be run, and whether they can be believed.

A patch that passes is run once more in another sandbox, where tests are their own opposites: code that passes those,
too, solves nothing. What fails once a patch is there is the patch's doing, unless it fails without one as well.
"""

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Collection

from sandbox.errors import SandboxError
from sandbox.protocol import Sandbox
from workers.handler import Score
from workers.handlers import clocks
from workers.handlers.clocks import FAIR, WALL, EvalClock
from workers.handlers.swe import grading, trial
from workers.handlers.swe.rows import Hidden, SweTask
from workers.handlers.swe.trial import Ready, RowBroken, Tested, TestLimits

CPU_S = 1800.0  # of one run of the tests, at most
LIMIT_S = 1800.0  # SWE-bench's own, of wall time, for what is installed and the tests; as much again when repeated
OPPOSITES = 24  # tests turned in one run, at most
_WITHOUT_S = 60.0  # for a run without the patch: only that it comes about is asked
_UNEXPLAINED = (SandboxError, RowBroken, OSError, UnicodeError)
Make = Callable[[], Awaitable[Sandbox]]


async def evaluate(make: Make, task: SweTask, hidden: Hidden, patch: str | bytes, clock: EvalClock) -> Score:
    """The score of a patch; `make` gives fresh sandboxes.

    Raises `RowBroken` and its like where no patch could be scored, `NodeCrowded` where the node had no time for one.
    """
    trials = _Trials(make, task, hidden, patch, clock)
    try:
        first = await trials.run()
        score = await _score(trials.ready, first)
        wanted = _wanted(hidden, first) if score.reward == 1.0 else ()
        second = await trials.run(turn=wanted) if wanted else None
    except trial.PatchRefused as refused:
        return Score(reward=0.0, note=str(refused)[:300])
    forged = grading.both_ways(first.judged, second.judged, second.turned, second.planted) if second else None
    return score if forged is None else Score(reward=0.0, note=forged)


class _Trials:
    """Runs of one patch."""

    def __init__(self, make: Make, task: SweTask, hidden: Hidden, patch: str | bytes, clock: EvalClock) -> None:
        self._make, self._task, self._hidden, self._patch = make, task, hidden, patch
        self._clock = clock
        self._cpu_s = min(CPU_S, (clock.end - clock.began) * FAIR)  # two runs of tests that wait for nothing fit
        self._had_s = 0.0  # wall time of the runs with the patch, also of those that ended their sandbox
        self.ready: Ready

    async def run(self, turn: Collection[str] = ()) -> Tested:
        """In a fresh sandbox; where that fails, in another. Raises `PatchRefused` if then only the patch can be why."""
        failure: Exception | None = None
        for _ in range(2):
            self.ready = await trial.ready(await self._make(), self._task, self._hidden)
            began = time.monotonic()
            tested: Tested | None = None
            try:
                tested = await trial.run_tests(self.ready, self._patch, self._limits(), turn=turn)
            except _UNEXPLAINED as error:
                failure = error
            self._had_s += time.monotonic() - began
            if tested is not None:
                return self._in_time(tested)
        ready = await trial.ready(await self._make(), self._task, self._hidden)
        await trial.run_tests(ready, None, self._limits(least_s=self._clock.ending_s, most_s=_WITHOUT_S))
        raise trial.PatchRefused(f"the tests can be run without the patch, and not with it: {failure}")

    def _limits(self, least_s: float = 0.0, most_s: float = math.inf) -> TestLimits:
        limit_s = LIMIT_S * (2 if self._clock.repeated else 1)
        wall_s = min(self._clock.wall * self._cpu_s, limit_s, self._clock.left_s, most_s)
        return TestLimits(cpu_s=self._cpu_s, wall_s=max(least_s, wall_s), ending_s=self._clock.ending_s)

    def _in_time(self, tested: Tested) -> Tested:
        judged = tested.judged
        late = judged.timed_out and judged.cpu_s < self._cpu_s
        if late:
            starved = clocks.was_starved(waited_s=judged.starved_s, wall_s=judged.wall_s)
            what = f"the tests waited for a CPU for {judged.starved_s:.0f} s"
            self._clock.cut(what, had_s=self._had_s, own_s=min(WALL * self._cpu_s, LIMIT_S), starved=starved)
        return tested


async def _score(ready: Ready, tested: Tested) -> Score:
    judged, planted = tested.judged, tested.planted
    forged = grading.forgery(judged, planted)
    if forged is not None:
        return Score(reward=0.0, note=f"{forged}: {judged.printed[-300:]}"[:400])
    if ready.task.kind == "r2egym":
        return grading.scored_r2e(ready.hidden, judged, planted)
    log = grading.log_of(ready.style, judged, planted)
    return await asyncio.to_thread(grading.scored, ready.task, ready.hidden, ready.parser, log)


def _wanted(hidden: Hidden, tested: Tested) -> set[str]:
    """Some of the tests that passed: of those that the fix is for, where their names can be told."""
    ours = {canary.name for canary in tested.planted}
    passed = [name for name, status, _ in tested.judged.statuses if status == "PASSED" and name not in ours]
    plain = {trial.without_parameters(name) for name in passed}
    meant = {name for name in plain if any(trial.function_of(name) in each for each in hidden.fail_to_pass)}
    chosen = sorted(meant or plain)
    return set(random.SystemRandom().sample(chosen, min(OPPOSITES, len(chosen))))
