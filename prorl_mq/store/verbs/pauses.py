"""Verbs that pause and resume jobs, and writes that hold a run's admission. Each may be sent twice."""

from collections.abc import Sequence
from contextlib import suppress

from redis.exceptions import OutOfMemoryError

from prorl_mq.schema.ids import RunRef
from prorl_mq.schema.items import Lane, Pause, Resume
from prorl_mq.schema.lifecycle import State, Verb, rules
from prorl_mq.schema.status import PauseEnd
from prorl_mq.store.core import EVENTS_CAP, Core, Repeat, texts
from prorl_mq.store.layout.keys import GROUP
from prorl_mq.store.moves.away import elsewhere


class PauseVerbs(Core):
    """Jobs are paused one by one, in calls of some; a run also admits nothing meanwhile."""

    async def pause(self, jobs: Sequence[Pause], *, for_ms: int, ends: PauseEnd) -> list[str]:
        """Pauses jobs: `parked`, `pausing` (its worker gives it back first), `gone`, `moved` (look again), or
        the state of a job that takes no pause.
        """
        keys = self.keys
        names = [*keys.parking, keys.events, keys.delayed]
        for job in jobs:
            names += (keys.job(job.ref), job.stream)
        arguments = {
            "rules": rules(Verb.PAUSE), "parks": rules(Verb.PAUSE, to=State.PAUSED), "consumers": GROUP,
            "by": self.name, "events_cap": EVENTS_CAP, "for_ms": for_ms, "ends": ends,
            "items": [(job.ref,) for job in jobs],
        }  # fmt: skip
        return texts(await self.call("pause", names, arguments))

    async def resume(self, jobs: Sequence[Resume], *, over: bool = False) -> list[str]:
        """Resumes jobs: `resumed`, `already` (it is not paused), `moved` (look again) or `gone`. With `over`, one whose
        pause has not come to its end is `moved`.
        """
        keys = self.keys
        names = [keys.events, keys.paused, keys.deadlines]
        for job in jobs:
            names += (keys.job(job.ref), keys.stage(job.stage), keys.stage(*Lane(job.stage).ahead))
        rows = [(job.ref, job.token, job.stage) for job in jobs]
        arguments = {
            "rules": rules(Verb.RESUME), "by": self.name, "events_cap": EVENTS_CAP, "over": over, "items": rows,
        }  # fmt: skip
        return texts(await self.call("resume", names, arguments))

    async def hold_run(self, run: RunRef, until_ms: int) -> None:
        """Nothing of the run is admitted until then. Raises `RunMoved` or `RunArriving`: its move has not seen this."""
        await self.write("ZADD", self.keys.paused_runs, until_ms, run, repeat=Repeat.SAME)
        way, cell = await self.read("HMGET", self.keys.away(run), "way", "cell")
        if way:
            await self.write("ZREM", self.keys.paused_runs, run, repeat=Repeat.SAME)
            raise elsewhere(run, way.decode(), cell.decode())

    async def let_run(self, run: RunRef) -> bool:
        """Ends that; whether it was so. Raises `RunMoved` or `RunArriving`: a run that has left took it along."""
        held = await self.read("ZSCORE", self.keys.paused_runs, run) is not None
        await self.write("ZREM", self.keys.paused_runs, run, repeat=Repeat.SAME)
        way, cell = await self.read("HMGET", self.keys.away(run), "way", "cell")
        if way:
            raise elsewhere(run, way.decode(), cell.decode())
        await self._ring([run])
        return held

    async def let_over(self, runs: Sequence[RunRef], now_ms: int) -> None:
        """Ends the holds of runs that have come to their end. One that was prolonged stays."""
        if runs:
            await self.write("ZREMRANGEBYSCORE", self.keys.paused_runs, "-inf", now_ms, repeat=Repeat.SAME)
            await self._ring(runs)

    async def _ring(self, runs: Sequence[RunRef]) -> None:
        with suppress(OutOfMemoryError):  # nothing is admitted now, and admission looks at every run now and then
            for run in runs:
                await self.write("ZADD", self.keys.admit_bell, 0, run, repeat=Repeat.SAME)
