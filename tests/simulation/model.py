"""What every script should do, in plain Python: the word of each reply is predicted from the replies before it.

Jobs, leases, pending entries, duties and groups are followed as the scripts follow them. Of dynamic sampling only what
jobs need is: `submit`, `draw`, `adopt` and the verdict on a drawn group are taken as they come.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tests.simulation.job_verbs import JobVerbs
from tests.simulation.state import Call, Group, Job, Place


class Model(JobVerbs):
    """The verbs of groups and duties, and the table of all."""

    def __init__(self) -> None:
        super().__init__()
        self._verbs: dict[str, Callable[[Call], list[Any] | None]] = {
            name: getattr(self, f"_{name}")
            for name in (
                "admit", "claim", "divert", "renew", "advance", "finish", "fail", "release", "confirm", "reap",
                "promote", "stop", "pause", "resume", "log", "settle", "withdraw", "hold", "submit", "ack",
                "draw", "adopt", "wake", "resign", "open_epoch", "shift_clock", "answer", "halt", "close",
                "retire_lane", "forget", "fork",
            )
        }  # fmt: skip

    def expect(self, call: Call) -> list[Any] | None:
        """The words of a call's reply, one for each item; None where they are not predicted."""
        verb = self._verbs.get(call.script)
        return verb(call) if verb else None

    def about(self, call: Call) -> list[str]:
        """What is known of the first jobs and groups that a call names."""
        found = []
        for item in [call.about.get("ref"), *(call.about.get("items") or ())][:4]:
            ref = item if isinstance(item, str) else item[0] if item else None
            known = self.jobs.get(str(ref)) or self.groups.get(str(ref))
            found += [str(known)] if known else []
        return found

    def _answer(self, call: Call) -> list[Any] | None:
        entry = call.about.get("entry")  # a name may be asked for again
        return self._once((call.keys[0], entry), call, b"answered") if entry else None

    def _halt(self, call: Call) -> list[Any] | None:
        return self._once(("halt", call.keys[0]), call, b"halted")

    def _close(self, call: Call) -> list[Any] | None:
        if call.reply in {b"open", b"already"}:
            return None
        return self._once(("close", call.keys[0]), call, call.reply)

    def _once(self, what: Place, call: Call, granted: bytes) -> list[Any] | None:
        """What a script grants once: the second time is the finding; a refusal is taken as it comes."""
        if call.reply != granted:
            return None
        if what in self.granted:
            return ["already"]
        self.granted.add(what)
        return None

    def _retire_lane(self, call: Call) -> list[Any] | None:
        used = any(job.stream in call.keys[1:] and job.entry for job in self.jobs.values())
        return ["in use"] if used else None

    def _forget(self, call: Call) -> list[Any] | None:
        if self.alive.get(call.about["name"], 0) > call.now_ms:
            return ["alive"]
        if call.reply == b"forgotten":
            self.alive.pop(call.about["name"], None)
        return None

    def _submit(self, call: Call) -> list[Any] | None:
        items, keys = call.about["items"], call.keys[9 + 3 * len(call.about["items"]) :]
        tokens = self._tokens_for(call)
        for (ref, _, samples, total_ms, *_), word in zip(items, call.reply, strict=False):
            if word not in {b"stored", b"begun"}:
                continue
            if ref in self.groups:
                return ["already" for _ in call.reply]
            begun, reserved = word == b"begun", bool(call.about["reserved"])
            if begun and (self._holder(keys[5], call.wall_ms) is None or self._held_back(call)):
                return ["stored" for _ in call.reply]
            group = self.groups[ref] = Group(wanted=samples, waits=not reserved and not begun, reserved=reserved)
            self.admitted[ref] = 0
            if begun:
                self._begin(call, group, ref, samples, keys[0], total_ms, tokens)
        return None

    def _fork(self, call: Call) -> list[Any]:
        """A group like any other one, of a batch of its own."""
        batch, about = call.keys[0], call.about
        parent = self.groups.get(call.keys[12].rpartition("open:")[2])
        if batch in self.forked:
            return ["already" if self.forked[batch] == about["digest"] else "conflict"]
        if about["ref"] in self.groups:
            return ["conflict"]
        if about["copies"] and (parent is None or parent.record):
            return ["moved"]
        self.forked[batch] = about["digest"]
        self.groups[about["ref"]] = Group(wanted=about["n"], waits=True)
        self.admitted[about["ref"]] = 0
        return ["forked"]

    def _draw(self, call: Call) -> list[Any] | None:
        batch = call.keys[0]
        if ("halt", batch) in self.granted or call.about["drawn"] != self.drawn.get(batch, 0):
            return [-1]
        if call.reply >= 0:
            self.drawn[batch] = self.drawn.get(batch, 0) + call.reply
            for ref in call.about["items"]:
                group = self.groups.get(ref)
                if group is not None and group.reserved:
                    group.reserved, group.waits = False, True
                    group.changes += 1
        return None

    def _adopt(self, call: Call) -> list[Any] | None:
        if ("halt", call.keys[0]) in self.granted:
            return [-1]
        for ref in call.about["items"] if call.reply >= 0 else ():
            if ref in self.groups:
                self.groups[ref].followed = False  # carry-overs are not
            if call.reply > 0:
                self._woken(ref, call.keys[3], call.now_ms)
        return None

    def _wake(self, call: Call) -> list[Any]:
        return [sum(self._woken(ref, call.keys[0], call.now_ms) for ref in call.about["items"])]

    def _woken(self, ref: str, due: str, now_ms: int) -> bool:
        group = self.groups.get(ref)
        if group is None or not group.parked:
            return False
        group.parked = False
        group.changes += 1
        self.due.add(self._added(due, now_ms))
        return True

    def _admit(self, call: Call) -> list[Any]:
        others = self._holder(call.keys[6], call.wall_ms) not in {None, call.about["by"]}
        others = others or self._held_back(call)
        words: list[Any] = []
        tokens = self._tokens_for(call)
        for (ref, first, wanted, total_ms), take in zip(call.about["items"], call.about["take"], strict=True):
            group = self.groups.get(ref)
            same = group is not None and not group.record and (group.next, group.wanted) == (first, wanted)
            if others or group is None or not same or not group.waits:
                words.append(-1)
                continue
            group.waits = take < wanted
            self._begin(call, group, ref, take, call.keys[1], total_ms, tokens)
            words.append(take)
        return words

    def _held_back(self, call: Call) -> bool:
        return self.paused_runs.get(call.about["run"], 0) > call.now_ms

    def _begin(
        self, call: Call, group: Group, ref: str, take: int, stream: str, total_ms: int, tokens: Iterator[str]
    ) -> None:
        state, stage, deadline = call.about["state"], call.about["stage"], call.now_ms + total_ms
        for index in range(group.next, group.next + take):
            entry = self._added(stream, call.now_ms)
            self.jobs[f"{ref}:{index}"] = Job(state, stage, stream, entry, deadline, next(tokens))
        group.next, group.wanted, group.open = group.next + take, group.wanted - take, group.open + take
        group.changes += 1
        self.admitted[ref] = group.next

    def _withdraw(self, call: Call) -> list[Any]:
        words = []
        for ref in call.about["items"]:
            group = self.groups.get(ref)
            if group is None or group.record:
                words.append(-1)
                continue
            first = not group.withdrawn
            group.withdrawn, group.wanted = group.withdrawn or call.about["why"], 0
            waited = group.waits or group.reserved or group.parked
            group.waits = group.reserved = group.parked = False
            group.changes += bool(first or waited)
            if waited and group.open == 0:
                self.due.add(self._added(call.keys[2], call.now_ms))
            words.append(group.next)
        return words

    def _settle(self, call: Call) -> list[Any] | None:
        about = call.about
        group = self.groups.get(about["ref"])
        if group is not None and not group.record and about["entry"] in self.due:
            if (about["seen"] is not None or not group.followed) and call.reply == b"moved":
                return None  # its batch is not followed
            if group.followed and (str(group.changes) if group.changes else "") != about["changes"]:
                return ["moved"]
        expected = self._verdict(about, group)
        if expected == "published":
            self._bury(about["ref"], call.wall_ms + about["linger_ms"])
        return [expected]

    def _verdict(self, about: Mapping[str, Any], group: Group | None) -> str:
        if about["entry"] not in self.due:
            return "already"
        self.due.discard(about["entry"])
        if group is None or group.record or group.open != 0:
            return "already"
        if about["wanted"] > 0:
            group.wanted, group.waits = about["wanted"], True
            group.changes += 1
            return "refilled"
        if about["park"]:
            group.parked = True
            group.changes += 1
            return "parked"
        group.record = True
        return "published"

    def _bury(self, ref: str, dies_ms: int) -> None:
        for index in range(self.admitted.get(ref, 0)):
            if (job := self.jobs.get(f"{ref}:{index}")) is not None:
                job.dies_ms = dies_ms

    def _ack(self, call: Call) -> list[Any] | None:
        words = []
        for item, word in zip(call.about["items"], call.reply, strict=True):
            place = (call.keys[0], item[0])
            words.append("already" if place in self.granted else word.decode())
            if word == b"acked":
                self.groups.pop(item[1], None)
                self.granted.add(place)
        return words

    def _hold(self, call: Call) -> list[Any]:
        about, key = call.about, call.keys[0]
        name, said = about["name"], f"{about['name']}\t{about['beat']}"
        holder = self._holder(key, call.wall_ms)
        if holder is not None and holder != name and self.duties[key][1] != about["seen"]:
            return [self.duties[key][1]]
        self.duties[key] = (name, said, call.wall_ms + about["lease_ms"])
        return ["held"]

    def _resign(self, call: Call) -> list[Any]:
        if self._holder(call.keys[0], call.wall_ms) != call.about["name"]:
            return ["not held"]
        del self.duties[call.keys[0]]
        return ["resigned"]

    def _shift_clock(self, call: Call) -> list[Any]:
        about = call.about
        if about["seen_ms"] != self.offset_ms:
            return ["moved"]
        now_ms = call.clock_ms + about["offset_ms"] - self.offset_ms
        if not about["jumped"]:
            now_ms = max(now_ms, self.floor_ms)
        self.offset_ms, self.floor_ms = about["offset_ms"], now_ms
        if not about["jumped"]:
            return ["shifted"]
        least_ms = now_ms + 2 * about["lease_ms"]
        self.alive = {name: now_ms + about["lease_ms"] if due >= least_ms else due for name, due in self.alive.items()}
        for job in self.jobs.values():
            if job.lease is not None and job.lease >= now_ms + 2 * about["lease_ms"]:
                job.lease = now_ms + about["lease_ms"]
            if job.delayed is not None and job.delayed >= now_ms + 2 * about["back_off_ms"]:
                job.delayed = now_ms + about["back_off_ms"]
        return ["shifted"]

    def _holder(self, key: str, wall_ms: int) -> str | None:
        """Redis removes a key that it finds past its time: a clock that goes back does not bring it again."""
        name, _, until = self.duties.get(key, (None, "", 0))
        if wall_ms > until:
            self.duties.pop(key, None)
            return None
        return name
