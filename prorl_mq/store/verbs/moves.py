"""The verbs of a run's move to another cell: one typed method for each script. Each may be sent twice."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from redis.exceptions import OutOfMemoryError

from prorl_mq.schema.ids import RunRef, public, tenant_of
from prorl_mq.store.core import DAY_MS, Core, Raw, Repeat, text, texts

DUE_AT_ONCE: Final = 1_000  # entries that one script looks through
NOTED_MS: Final = 30 * DAY_MS  # how long it is noted where a run has gone
BEGUN_MS: Final = 60_000  # how long a run is expected of which nothing has come; each `begin` prolongs it
HELD_MS: Final = 10_000  # how long nothing of a run begins after somebody has asked it to leave
WAITING: Final = ("jobs", "verdicts", "messages on its intake", "cancels", "groups for the archive")


class Write(NamedTuple):
    """A command on one key of a run, with the words behind the key."""

    command: str
    key: str
    words: Sequence[bytes]


class DepartedRun(NamedTuple):
    """A run that has left for a cell, by the departure with that id."""

    id: str
    cell: str


class MoveVerbs(Core):
    """A run departs, arrives page by page, and is then removed where it was; or it is taken back before that."""

    async def hold_to_leave(self, run: RunRef) -> bool:
        """Nothing of the run begins for some seconds. True if that was so already."""
        now_ms, held_until = await self.now_ms(), await self.read("ZSCORE", self.keys.leaving, run)
        await self.write("ZREMRANGEBYSCORE", self.keys.leaving, "-inf", now_ms, repeat=Repeat.SAME)
        with suppress(OutOfMemoryError):  # then nothing begins, and a full cell may give runs away
            await self.write("ZADD", self.keys.leaving, now_ms + HELD_MS, run, repeat=Repeat.SAME)
        return float(held_until or 0) > now_ms

    async def depart(self, run: RunRef, cell: str, *, due_after: str) -> DepartedRun | Mapping[str, int] | None:
        """Ends a run here if nothing of it is in flight, else what is; None where there is no such run."""
        keys = self.keys
        names = [keys.away(run), keys.run(run), keys.runs, keys.run_settings, keys.unacked, keys.in_flight, keys.due]
        names += (keys.intake(run), keys.to_cancel(tenant_of(run)), keys.cancellable(run), keys.results(run))
        names += (keys.departed(run), keys.answers(run), keys.dapo, keys.carrying, keys.paused_runs)
        names += (keys.archive(run), keys.admit_bell, keys.draw_bell, keys.intakes, keys.intakes_of(tenant_of(run)))
        about = {
            "run": run,
            "name": public(run),
            "cell": cell,
            "prefix": keys.prefix,
            "due_after": due_after,
            "most": DUE_AT_ONCE,
            "tokens": 1,
        }
        word, *rest = await self.call("depart", names, about)
        if word == b"left":
            return DepartedRun(*texts(rest))
        return None if word == b"gone" else {name: count for name, count in zip(WAITING, rest, strict=True) if count}

    async def give(self, run: RunRef, departure: str) -> tuple[str, bytes]:
        """Hands out what a run that has left held of shared keys, packed: `given`, `back` or `gone`."""
        word, facts = await self.call("give", [self.keys.away(run)], {"id": departure})
        return text(word), facts

    async def restore(self, run: RunRef, departure: str, step: str) -> str:
        """Takes a run back that has left: `restored`, `given` (it may be open in the other cell), `kept` or `gone`."""
        names = [*self._held(run), self.keys.intakes, self.keys.intakes_of(tenant_of(run))]
        about = {"run": run, "name": public(run), "id": departure, "step": step}
        return text(await self.call("restore", names, about))

    async def refuse(
        self, run: RunRef, departure: str, keys: Sequence[str], *, mover: str, cell: str, last: str = ""
    ) -> str:
        """Lets a run arrive here no more by a departure, and removes `keys` of what had come of it: `refused`, `here`,
        `left`, `stale` or `restarted`. `last`: as of `vacate`; the cell that keeps it is then noted.
        """
        about = {"run": run, "id": departure, "cell": cell, "mover": mover, "last": last, "ttl_ms": NOTED_MS}
        names = [self.keys.away(run), self.keys.run(run), self.keys.arrivals, *keys]
        return text(await self.call("refuse", names, about))

    async def arrive(
        self,
        run: RunRef,
        step: str,
        *,
        mover: str,
        cell: str = "",
        departure: str = "",
        first: bool = False,
        clears: Sequence[str] = (),
        writes: Sequence[Write] = (),
        facts: Mapping[str, Any] | None = None,
        held: int = -1,
    ) -> tuple[str, str]:
        """Takes one step of a run's arrival: the script's reply, and the departure by which the run is here."""
        places = {key: place for place, key in enumerate(dict.fromkeys(each.key for each in writes), 1)}
        raw, items = Raw(), []
        for each in writes:
            at = len(raw) + 2
            raw.extend(each.words)
            items.append((each.command, places[each.key], at, len(raw) + 1))
        about = {
            "run": run, "step": step, "cell": cell, "mover": mover, "id": departure, "first": first, "ttl_ms": BEGUN_MS,
            "bytes": held, "facts": facts or {}, "items": items, "tokens": 1,
        }  # fmt: skip
        names = [*self._held(run), self.keys.arrivals, *clears, *places]
        word, arrived = await self.call("arrive", names, about, *raw)
        return text(word), text(arrived)

    async def vacate(self, run: RunRef, departure: str, keys: Sequence[str], *, last: str = "") -> str:
        """Removes keys of a run that has left, and all but a note of its cell where Redis is still the server `last`:
        `vacated`, `already` or `restarted`.
        """
        about = {"id": departure, "last": last, "ttl_ms": NOTED_MS}
        return text(await self.call("vacate", [self.keys.away(run), self.keys.departed(run), *keys], about))

    def _held(self, run: RunRef) -> list[str]:
        """The keys of `held.lua`."""
        keys = self.keys
        names = [keys.away(run), keys.run(run), keys.runs, keys.run_settings, keys.unacked, keys.results(run)]
        names += (keys.departed(run), keys.answers(run), keys.dapo, keys.carrying, keys.paused_runs)
        return [*names, keys.cancellable(run), keys.admit_bell, keys.draw_bell]
