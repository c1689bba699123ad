"""Verbs of duties, for what they hold and remove: one typed method for each script. Each may be sent twice."""

from collections.abc import Mapping, Sequence
from typing import Any

from prorl_mq.schema.ids import BatchRef, JobRef, RunRef, run_ref
from prorl_mq.schema.intake import TRAINERS
from prorl_mq.schema.items import LONGEST_BACK_OFF_MS, Lane
from prorl_mq.store.core import Core, text, texts
from prorl_mq.store.layout.keys import GROUP, lane_name, lanes_of
from prorl_mq.store.verbs.groups import ADMIT


class DutyVerbs(Core):
    """The lease on a duty, and what single duties remove: dead workers, empty lanes, idle runs, answered messages."""

    async def hold(self, duty: str, *, lease_ms: int, beat: int = 0, seen: str = "") -> str:
        """Takes or renews the lease on a maintenance duty: `held`, or who has it, with the beat of that.

        `seen`: a holder whose beat has stood still for a lease.
        """
        arguments = {"name": self.name, "beat": beat, "lease_ms": lease_ms, "seen": seen}
        return text(await self.call("hold", [self.keys.duty(duty)], arguments))

    async def shift_clock(self, *, seen_ms: int, offset_ms: int, jumped: bool, lease_ms: int) -> str:
        """Writes down how far the service's time has come, and another offset in place of the one that was seen.

        `jumped`: what was written down before counts no more. Answers `shifted`, or `moved` when another process has
        changed the offset.
        """
        arguments = {
            "seen_ms": seen_ms,
            "offset_ms": offset_ms,
            "jumped": jumped,
            "lease_ms": lease_ms,
            "back_off_ms": LONGEST_BACK_OFF_MS,
        }
        names = [self.keys.leases, self.keys.workers, self.keys.delayed]
        return text(await self.call("shift_clock", names, arguments))

    async def switch(self, *, seen: str, to: str) -> str:
        """Gives a namespace without jobs in flight to releases of another protocol, by who holds admission: `switched`,
        `already`, `moved` where its protocol is not `seen`, `not held`, or `in flight`.
        """
        names = [self.keys.epoch, self.keys.in_flight, self.keys.duty(ADMIT)]
        return text(await self.call("switch", names, None, self.name.encode(), seen.encode(), to.encode()))

    async def resign(self, duty: str) -> str:
        """Gives the lease on a duty up, so that another process takes over at once: `resigned` or `not held`."""
        return text(await self.call("resign", [self.keys.duty(duty)], {"name": self.name}))

    async def forget(self, worker: str, streams: Sequence[str]) -> str:
        """Removes a dead worker's names: `forgotten`, `alive` or `pending`."""
        names = [self.keys.workers, self.keys.worker(worker), *streams]
        return text(await self.call("forget", names, {"name": worker, "consumers": GROUP}))

    async def bury(self, worker: str, started_ms: int, held: Sequence[tuple[JobRef, str]]) -> list[str]:
        """Ends leases of a worker that is known to be dead, each by its job and token: `buried`, `already`, `stale`, or
        `unknown` where the worker that has its name now is another start.
        """
        names = [self.keys.leases, self.keys.worker(worker), *(self.keys.job(ref) for ref, _ in held)]
        arguments = {"dead": worker, "started": str(started_ms), "items": held}
        return texts(await self.call("bury", names, arguments))

    async def retire_lane(self, node: str) -> str:
        """Removes the lanes of a node that is gone: `retired`, or `in use` when a job has come meanwhile."""
        names = [self.keys.lanes, *(self.keys.stage(*lane) for lane in lanes_of(node))]
        return text(await self.call("retire_lane", names, {"name": node}))

    async def retire_family_lane(self, lane: Lane) -> str:
        """Removes the lane of a task family, as `retire_lane` does."""
        names = [self.keys.family_lanes, self.keys.stage(*lane)]
        return text(await self.call("retire_lane", names, {"name": lane_name(lane)}))

    async def retire_run(self, run: RunRef, *, idle_ms: int) -> str:
        """Forgets a run that was not used for `idle_ms` and holds nothing: `retired`, or `in use`."""
        keys = self.keys
        names = [keys.runs, keys.run_settings, keys.run(run), keys.backlog(run), keys.results(run)]
        names += (keys.open_groups(run), keys.cancellable(run), keys.batches(run))
        return text(await self.call("retire_run", names, {"run": run, "idle_ms": idle_ms}, of_run=run))

    async def peek(self, runs: Sequence[RunRef], *, limit: int, most_bytes: int, room_bytes: int) -> list[Any]:
        """Contents of the intakes of some runs: for each that is not empty its place from 1, its bytes, the
        number of its messages, and the oldest of them or None.

        At most `limit` messages of each; none where an intake holds more than `most_bytes`. Bytes are -1 where a key
        is no stream. An intake that the `room_bytes` of one look do not hold is left out.
        """
        names = [self.keys.intake(run) for run in runs]
        found: list[Any] = await self.call("peek", names, None, limit, most_bytes, room_bytes)
        return found

    async def thin(self, run: RunRef, *, most: int, last: str, waiting: int) -> str:
        """Ends consumers of a run's results above `most`: `few` where there are not as many, `thinned`, or `begun`
        where the group is given all that lies on the stream again.

        `last` and `waiting`: the group when the caller had deleted all that was acknowledged; `moved` where it was read
        or acknowledged since, and too many consumers hold something.
        """
        arguments = {"trainers": TRAINERS, "most": most, "last": last, "waiting": waiting}
        return text(await self.call("thin", [self.keys.results(run)], arguments))

    async def weigh(self, run: RunRef) -> list[Any]:
        """Id and bytes of the oldest message of a run's intake; nothing where it is empty."""
        found: list[Any] = await self.call("weigh", [self.keys.intake(run)], None)
        return found

    async def answer(self, run: RunRef, entry: str, answer: bytes) -> str:
        """Puts the answer to a message of a run's intake on its results and removes the message: `answered`.

        `already`: the message is gone. A lost reply never makes two answers.
        """
        return await self._answer(run, self.keys.intake(run), {"entry": entry}, answer)

    async def answer_cancel(self, name: RunRef | BatchRef, answer: bytes) -> str:
        """Takes a run or batch out of its tenant's cancels, and answers on its run's results, as `answer` does."""
        tenant, run, *_ = name.split(":")
        return await self._answer(run_ref(tenant, run), self.keys.to_cancel(tenant), {"name": name}, answer)

    async def _answer(self, run: RunRef, asked: str, about: Mapping[str, str], answer: bytes) -> str:
        names = [asked, self.keys.results(run), self.keys.answers(run), self.keys.runs]
        return text(await self.call("answer", names, {"run": run, "trainers": TRAINERS, **about}, answer))
