"""What every script should do, in plain Python: the word of each reply is predicted from the replies before it.

Jobs, leases, pending entries, duties and groups are followed as the scripts follow them. Of dynamic sampling only what
jobs need is: `submit`, `draw`, `adopt` and the verdict on a drawn group are taken as they come.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Place = tuple[str, str]  # a stream and an entry of it


@dataclass(slots=True)
class Job:
    """One admitted sample."""

    state: str
    stage: str
    stream: str
    entry: str
    deadline: int
    token: str = ""
    owner: str = ""
    until: int = 0
    lease: int | None = None  # in ms; None: no lease
    delayed: int | None = None  # until when
    ending: str = ""
    committed: set[str] = field(default_factory=set)
    dies_ms: int | None = None


@dataclass(slots=True)
class Group:
    """One group from its submission to its acknowledgement."""

    next: int = 0
    wanted: int = 0
    open: int = 0
    counted: int = 0
    withdrawn: bool = False
    parked: bool = False
    waits: bool = False  # in its run's backlog
    reserved: bool = False  # in a reservoir
    record: bool = False  # it is published


class Call(NamedTuple):
    """One script call, unpacked, at Redis's time."""

    script: str
    keys: Sequence[str]
    about: Mapping[str, Any]
    now_us: int
    reply: Any

    @property
    def now_ms(self) -> int:
        return self.now_us // 1000


class Model:
    """The state of one namespace as the scripts should have left it."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.groups: dict[str, Group] = {}
        self.pending: set[Place] = set()
        self.due: set[str] = set()
        self.duties: dict[str, tuple[str, int]] = {}  # key → holder, until
        self.admitted: dict[str, int] = {}  # group → how many samples it has had in all
        self._last: dict[str, tuple[int, int]] = {}
        self._verbs: dict[str, Callable[[Call], list[Any] | None]] = {
            name: getattr(self, f"_{name}")
            for name in (
                "admit", "claim", "renew", "advance", "finish", "fail", "release", "confirm", "reap", "promote", "stop",
                "settle", "withdraw", "hold", "submit", "ack", "draw", "adopt", "wake",
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

    # ---- plain commands

    def read(self, stream: str, entries: Sequence[str]) -> None:
        """Entries that a worker was given."""
        self.pending |= {(stream, entry) for entry in entries}

    def acknowledged(self, stream: str, entries: Sequence[str]) -> None:
        self.pending -= {(stream, entry) for entry in entries}

    # ---- parts of scripts

    def _added(self, stream: str, now_ms: int) -> str:
        """The id of an entry that is added now."""
        ms, number = self._last.get(stream, (0, 0))
        self._last[stream] = (now_ms, 0) if now_ms > ms else (ms, number + 1)
        return "{}-{}".format(*self._last[stream])

    def _job(self, ref: str, now_ms: int) -> Job | None:
        job = self.jobs.get(ref)
        return None if job is None or (job.dies_ms is not None and now_ms > job.dies_ms) else job

    def _commit(self, call: Call, ref: str, token: str, entry: str, stream: str) -> tuple[Job | None, str]:
        """The fence: the job if the caller holds its current lease, else the refusal."""
        job = self._job(ref, call.now_ms)
        if job is None:
            return None, "gone"
        if token in job.committed:
            return None, "already"
        if job.token != token:
            return None, "stale"
        to = call.about["rules"].get(job.state)
        if to is None:
            return None, job.state
        if (stream, entry) not in self.pending:
            return None, "stale"
        self.pending.discard((stream, entry))
        job.committed.add(token)
        job.state, job.owner, job.lease = to, "", None
        return job, ""

    def _ended(self, ref: str, job: Job, due: str, now_ms: int, due_at: int = 0) -> None:
        job.state, job.entry, job.owner, job.lease, job.delayed = "done", "", "", None, None
        group = self.groups.setdefault(ref.rpartition(":")[0], Group())
        group.open -= 1
        early = False
        if due_at > 0:
            group.counted += 1
            early = group.counted == due_at
        if group.open == 0 or early:
            self.due.add(self._added(due, now_ms))

    # ---- a group's way

    def _submit(self, call: Call) -> None:
        for item, word in zip(call.about["items"], call.reply, strict=False):
            if word == b"stored":
                reserved = bool(call.about["reserved"])
                self.groups[item[0]] = Group(wanted=item[2], waits=not reserved, reserved=reserved)
                self.admitted[item[0]] = 0

    def _draw(self, call: Call) -> None:
        if call.reply >= 0:
            for ref in call.about["items"]:
                group = self.groups.get(ref)
                if group is not None and group.reserved:
                    group.reserved, group.waits = False, True

    def _adopt(self, call: Call) -> None:
        if call.reply > 0:
            for ref in call.about["items"]:
                self._woken(ref, call.keys[3], call.now_ms)

    def _wake(self, call: Call) -> list[Any]:
        return [sum(self._woken(ref, call.keys[0], call.now_ms) for ref in call.about["items"])]

    def _woken(self, ref: str, due: str, now_ms: int) -> bool:
        group = self.groups.get(ref)
        if group is None or not group.parked:
            return False
        group.parked = False
        self.due.add(self._added(due, now_ms))
        return True

    def _admit(self, call: Call) -> list[Any]:
        others = self._holder(call.keys[6], call.now_ms) not in {None, call.about["by"]}
        words: list[Any] = []
        for ref, first, wanted, total_ms in call.about["items"]:
            group = self.groups.get(ref)
            same = group is not None and not group.record and (group.next, group.wanted) == (first, wanted)
            if others or group is None or not same or not group.waits:
                words.append(-1)
                continue
            group.waits = False
            for index in range(first, first + wanted):
                entry = self._added(call.keys[1], call.now_ms)
                stage, stream, deadline = call.about["stage"], call.keys[1], call.now_ms + total_ms
                self.jobs[f"{ref}:{index}"] = Job(call.about["state"], stage, stream, entry, deadline)
            group.next, group.wanted, group.open = first + wanted, 0, group.open + wanted
            self.admitted[ref] = group.next
            words.append(wanted)
        return words

    def _withdraw(self, call: Call) -> list[Any]:
        words = []
        for ref in call.about["items"]:
            group = self.groups.get(ref)
            if group is None or group.record:
                words.append(-1)
                continue
            group.withdrawn, group.wanted = True, 0
            waited = group.waits or group.reserved or group.parked
            group.waits = group.reserved = group.parked = False
            if waited and group.open == 0:
                self.due.add(self._added(call.keys[2], call.now_ms))
            words.append(group.next)
        return words

    def _settle(self, call: Call) -> list[Any] | None:
        about, word = call.about, call.reply.decode()
        group = self.groups.get(about["ref"])
        if about["seen"] is not None:
            if word in {"moved", "withdrawn"} and about["entry"] in self.due:
                return None  # its batch is not followed
            expected = self._verdict(about, group)
            return None if word == "moved" else [expected]
        if about["wanted"] > 0 and group is not None and group.withdrawn and not group.record:
            return ["withdrawn"]
        expected = self._verdict(about, group)
        if expected == "published":
            self._bury(about["ref"], call.now_ms + about["linger_ms"])
        return [expected]

    def _verdict(self, about: Mapping[str, Any], group: Group | None) -> str:
        if about["entry"] not in self.due:
            return "already"
        self.due.discard(about["entry"])
        if group is None or group.record or group.open != 0:
            return "already"
        if about["wanted"] > 0:
            group.wanted, group.waits = about["wanted"], True
            return "refilled"
        if about["park"]:
            group.parked = True
            return "parked"
        group.record = True
        return "published"

    def _bury(self, ref: str, dies_ms: int) -> None:
        for index in range(self.admitted.get(ref, 0)):
            if (job := self.jobs.get(f"{ref}:{index}")) is not None:
                job.dies_ms = dies_ms

    def _ack(self, call: Call) -> None:
        for item, word in zip(call.about["items"], call.reply, strict=True):
            if word == b"acked":
                self.groups.pop(item[1], None)

    def _hold(self, call: Call) -> list[Any]:
        if self._holder(call.keys[0], call.now_ms) not in {None, call.about["name"]}:
            return ["taken"]
        self.duties[call.keys[0]] = (call.about["name"], call.now_ms + call.about["lease_ms"])
        return ["held"]

    def _holder(self, key: str, now_ms: int) -> str | None:
        name, until = self.duties.get(key, (None, 0))
        return name if now_ms <= until else None

    # ---- a job's way

    def _claim(self, call: Call) -> list[Any]:
        words = []
        for ref, entry, lease_ms, budget_ms in call.about["items"]:
            job = self._job(ref, call.now_ms)
            if job is None or (job.entry, job.stream) != (entry, call.keys[0]):
                words.append("stale" if job else "gone")
                self.pending.discard((call.keys[0], entry))
            elif job.state not in call.about["rules"]:
                words.append("already" if job.owner == call.about["worker"] else "stale")
            elif job.deadline <= call.now_ms:
                words.append("expired")
            else:
                job.state, job.owner = call.about["rules"][job.state], call.about["worker"]
                job.until = call.now_ms + budget_ms
                job.token = next_token(job.token, call.now_us)
                job.lease = call.now_ms + min(lease_ms, budget_ms)
                words.append("claimed")
        return words

    def _renew(self, call: Call) -> list[Any]:
        words = []
        for ref, token, lease_ms in call.about["items"]:
            job = self._job(ref, call.now_ms)
            if job is None or job.token != token or job.state not in call.about["rules"]:
                words.append("lost")
            else:
                if job.lease is not None:
                    job.lease = min(call.now_ms + lease_ms, job.until)
                words.append(job.ending or "held")
        return words

    def _advance(self, call: Call) -> list[Any]:
        words, at = [], 4
        for ref, token, entry, _, trajectory, _, _ in call.about["items"]:
            stream, at = call.keys[at + 1], at + (4 if trajectory else 3)
            job, refusal = self._commit(call, ref, token, entry, call.keys[0])
            if job is not None:
                job.stage, job.stream, job.entry = call.about["next"], stream, self._added(stream, call.now_ms)
            words.append(refusal or "advanced")
        return words

    def _finish(self, call: Call) -> list[Any]:
        words = []
        for ref, token, entry, _, _, _, due_at in call.about["items"]:
            job, refusal = self._commit(call, ref, token, entry, call.keys[0])
            if job is not None:
                self._ended(ref, job, call.keys[4], call.now_ms, due_at)
            words.append(refusal or "finished")
        return words

    def _fail(self, call: Call) -> list[Any]:
        words, at = [], 4
        for ref, token, entry, stage, delay_ms, _, _ in call.about["items"]:
            stream, at = call.keys[at + 2], at + 3
            job, refusal = self._commit(call, ref, token, entry, call.keys[0])
            if job is not None:
                job.stage, job.stream, job.entry, job.delayed = stage, stream, "", call.now_ms + delay_ms
            words.append(refusal or "delayed")
        return words

    def _release(self, call: Call) -> list[Any]:
        words = []
        for ref, token, entry in call.about["items"]:
            job, refusal = self._commit(call, ref, token, entry, call.keys[0])
            if job is not None:
                job.entry = self._added(call.keys[0], call.now_ms)
            words.append(refusal or "released")
        return words

    def _confirm(self, call: Call) -> list[Any]:
        words, at = [], 5
        for ref, token, entry, *_ in call.about["items"]:
            stream, at = call.keys[at + 3], at + 4
            job, refusal = self._commit(call, ref, token, entry, stream)
            if job is not None:
                self._ended(ref, job, call.keys[3], call.now_ms)
            words.append(refusal or "confirmed")
        return words

    def _reap(self, call: Call) -> list[Any]:
        words, at, about = [], 5, call.about
        for ref, token, entry, stage, _, _, _, leased, _ in about["items"]:
            source, target = call.keys[at + 3], call.keys[at + 4]
            at += 5
            job = self._job(ref, call.now_ms)
            to = about["rules"].get(job.state) if job else None
            if job is None:
                words.append("gone")
            elif to is None or (job.token, job.entry, job.stream) != (token, entry, source):
                words.append("stale")
            elif leased and job.lease is not None and job.lease > call.now_ms:
                words.append("held")
            else:
                self.pending.discard((source, entry))
                job.lease = None
                if to == about["done"]:
                    self._ended(ref, job, call.keys[3], call.now_ms)
                    words.append("ended")
                else:
                    job.state, job.stage, job.stream, job.owner = to, stage, target, ""
                    job.token, job.entry = next_token(token, call.now_us), self._added(target, call.now_ms)
                    words.append("requeued")
        return words

    def _promote(self, call: Call) -> list[Any]:
        words = []
        for place, ref in enumerate(call.about["items"]):
            stream = call.keys[2 + 2 * place + 1]
            job = self._job(ref, call.now_ms)
            if job is None:
                words.append("gone")
            elif job.state not in call.about["rules"] or job.stream != stream:
                words.append("stale")
            elif job.delayed is not None and job.delayed > call.now_ms:
                words.append("early")
            else:
                job.state, job.delayed = call.about["rules"][job.state], None
                job.entry = self._added(stream, call.now_ms)
                words.append("promoted")
        return words

    def _stop(self, call: Call) -> list[Any]:
        words, at, about = [], 6, call.about
        for ref, _, _, *deadline in about["items"]:
            stream, at = call.keys[at + 2], at + 3
            job = self._job(ref, call.now_ms)
            to = about["rules"].get(job.state) if job else None
            if job is None:
                words.append("gone")
            elif to is None:
                words.append("already")
            elif job.stream != stream or (deadline and job.deadline > call.now_ms):
                words.append("moved")
            elif to == about["done"]:
                self.pending.discard((stream, job.entry))
                self._ended(ref, job, call.keys[3], call.now_ms)
                words.append("ended")
            else:
                job.state, job.ending = to, about["ending"]
                words.append("stopping")
        return words


def next_token(previous: str, now_us: int) -> str:
    """A token only grows."""
    return str(max(int(previous or 0) + 1, now_us))
