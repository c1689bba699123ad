"""What the scripts that move jobs should do: claim, renew, the commits, reap, promote and stop."""

from typing import Any, Final

from tests.simulation.state import Call, Job, Place, State

PARKING: Final = 3  # keys in front of those that a script which may park a job names itself


class JobVerbs(State):
    """Each method answers the words of its script's reply."""

    def _claim(self, call: Call) -> list[Any]:
        words, stream = [], call.keys[0]
        for ref, entry, token, held_ms, lease_ms, budget_ms in call.about["items"]:
            job = self._job(ref, call.wall_ms)
            words.append(self._lease(call, job, (stream, entry), token, held_ms, lease_ms, budget_ms))
            if words[-1] in {"gone", "stale"} and (job is None or (job.entry, job.stream) != (entry, stream)):
                self.pending.pop((stream, entry), None)
            if words[-1] == "claimed" and job and call.reply[len(words) - 1][1].decode() != job.token:
                words[-1] = f"token {job.token}"
        return words

    def _lease(
        self, call: Call, job: Job | None, place: Place, token: str, held_ms: int, lease_ms: int, budget_ms: int
    ) -> str:
        """A lease for what the caller has read and not committed."""
        worker, claims = call.about["worker"], call.about.get("claims", call.about["rules"])
        if job is None:
            return "gone"
        if (job.stream, job.entry) != place or (token and token != job.token):
            return "stale"
        if job.state not in claims:
            return "already" if job.owner == worker else "stale"
        if self.pending.get(place) != worker:
            return "stale"
        if job.deadline <= call.now_ms:
            return "expired"
        job.state, job.owner = claims[job.state], worker
        job.until = max(call.now_ms - held_ms + budget_ms, call.now_ms)
        job.lease = min(call.now_ms + lease_ms, job.until)
        return "claimed"

    def _divert(self, call: Call) -> list[Any]:
        words, keys, tokens = [], call.keys[PARKING:], self._tokens_for(call)
        source = keys[0]
        for place, (ref, entry) in enumerate(call.about["items"]):
            lane, job = keys[3 + 2 * place], self._job(ref, call.wall_ms)
            if job is None:
                words.append("gone")
            elif job.stream == lane:
                words.append("already")
            elif job.state not in call.about["rules"] or (job.entry, job.stream) != (entry, source):
                words.append("stale")
            else:
                self.pending.pop((source, entry), None)
                job.stream, job.token = lane, next(tokens)
                self._put(call, job, lane)
                words.append("diverted")
        return words

    def _renew(self, call: Call) -> list[Any]:
        words, about = [], call.about
        self.alive[about["worker"]] = call.now_ms + about["alive_ms"]
        for at, (ref, token, entry, *times) in enumerate(about["items"]):
            job = self._job(ref, call.wall_ms)
            if job is None or job.token != token:
                words.append("lost")
            elif job.state in about["claims"]:
                word = self._lease(call, job, (call.keys[5 + 2 * at], entry), token, *times)
                words.append({"claimed": "held", "expired": "unleased"}.get(word, "lost"))
            elif job.state not in about["rules"] or job.owner != about["worker"]:
                words.append("lost")
            else:
                if job.lease is not None:
                    job.lease = min(call.now_ms + times[1], job.until)
                told = "pause" if about.get("pauses") and self._marked(call, job) else "held"
                words.append(job.ending or told)
        return words

    def _advance(self, call: Call) -> list[Any]:
        words, at, tokens, keys = [], 4, self._tokens_for(call), call.keys[PARKING:]
        for ref, token, entry, _, _, trajectory, *_ in call.about["items"]:
            stream, front, at = keys[at + 1], keys[at + 2], at + (5 if trajectory else 4)
            job, refusal = self._commit(call, ref, token, entry, keys[0])
            if job is not None:
                stream = front if job.logged and not call.about["forgets"] else stream
                job.stage, job.stream, job.token = call.about["next"], stream, next(tokens)
                self._put(call, job, stream)
                job.logged = 0 if call.about["forgets"] else job.logged
            words.append(refusal or "advanced")
        return words

    def _finish(self, call: Call) -> list[Any]:
        words = []
        for ref, token, entry, _, _, _, _ in call.about["items"]:
            job, refusal = self._commit(call, ref, token, entry, call.keys[0])
            if job is not None:
                self._ended(ref, job, call.keys[4], call.now_ms)
            words.append(refusal or "finished")
        return words

    def _fail(self, call: Call) -> list[Any]:
        words, at, tokens, keys = [], 5, self._tokens_for(call), call.keys[PARKING:]
        for ref, token, entry, _, stage, delay_ms, _, _, forgets, *_ in call.about["items"]:
            stream, front, at = keys[at + 2], keys[at + 3], at + 4
            job, refusal = self._commit(call, ref, token, entry, keys[0])
            if job is not None:
                stream = front if job.logged and not forgets else stream
                job.stage, job.stream, job.entry, job.delayed = stage, stream, "", call.now_ms + delay_ms
                if self._marked(call, job):
                    job.token = next(tokens)
                    self._put(call, job, stream)
                job.logged = 0 if forgets else job.logged
            words.append(refusal or "delayed")
        return words

    def _release(self, call: Call) -> list[Any]:
        words, at, tokens, keys = [], 3, self._tokens_for(call), call.keys[PARKING:]
        for ref, token, entry, _ in call.about["items"]:
            stream, front, at = keys[at + 2], keys[at + 3], at + 4
            job, refusal = self._commit(call, ref, token, entry, keys[0])
            if job is not None:
                job.stream, job.token = front if job.logged else stream, next(tokens)
                self._put(call, job, job.stream)
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
        words, at, about, tokens, keys = [], 5, call.about, self._tokens_for(call), call.keys[PARKING:]
        for ref, token, entry, stage, _, _, _, unread, _ in about["items"]:
            source, target, front = keys[at + 3 : at + 6]
            at += 6
            job = self._job(ref, call.wall_ms)
            to = about["rules"].get(job.state) if job else None
            if job is None:
                words.append("gone")
            elif to is None or (job.token, job.entry, job.stream) != (token, entry, source):
                words.append("stale")
            elif (job.lease is not None and job.lease > call.now_ms) or (unread and (source, entry) in self.pending):
                words.append("held")
            else:
                self.pending.pop((source, entry), None)
                job.lease = None
                if to == about["done"]:
                    self._ended(ref, job, keys[3], call.now_ms)
                    words.append("ended")
                else:
                    job.state, job.stage, job.stream, job.owner = to, stage, front if job.logged else target, ""
                    job.token = next(tokens)
                    self._put(call, job, job.stream)
                    words.append("requeued")
        return words

    def _log(self, call: Call) -> list[Any]:
        words = []
        for ref, token, place, *_ in call.about["items"]:
            job = self._job(ref, call.wall_ms)
            holds = job is not None and (job.token, job.owner) == (token, call.about["worker"])
            if job is None or not holds or job.state not in call.about["rules"]:
                words.append("stale")
            elif place < 0:
                job.logged = 0
                words.append("dropped")
            elif place == job.logged:
                job.logged += 1
                words.append("logged")
            else:
                words.append("already" if place < job.logged else str(job.logged))
        return words

    def _promote(self, call: Call) -> list[Any]:
        words, tokens = [], self._tokens_for(call)
        for place, ref in enumerate(call.about["items"]):
            stream = call.keys[2 + 2 * place + 1]
            job = self._job(ref, call.wall_ms)
            if job is None:
                words.append("gone")
            elif job.state not in call.about["rules"] or job.stream != stream:
                words.append("stale")
            elif job.delayed is not None and job.delayed > call.now_ms:
                words.append("early")
            else:
                job.state, job.delayed = call.about["rules"][job.state], None
                job.entry, job.token = self._added(stream, call.now_ms), next(tokens)
                words.append("promoted")
        return words

    def _marked(self, call: Call, job: Job) -> bool:
        return job.pause > call.now_ms

    def _put(self, call: Call, job: Job, stream: str) -> None:
        """Puts a job that nobody has on a stream, or parks it. Its token is another one by then."""
        if self._marked(call, job):
            job.state, job.entry, job.owner, job.parked, job.delayed = "paused", "", "", call.now_ms, None
        else:
            job.entry = self._added(stream, call.now_ms)

    def _pause(self, call: Call) -> list[Any]:
        words, keys, about, tokens = [], call.keys[PARKING:], call.about, self._tokens_for(call)
        for place, (ref,) in enumerate(about["items"]):
            stream, job = keys[3 + 2 * place], self._job(ref, call.wall_ms)
            if job is None:
                words.append("gone")
            elif job.state not in {**about["parks"], **about["rules"]}:
                words.append(job.state)
            elif job.stream != stream:
                words.append("moved")
            else:
                job.pause, free = call.now_ms + about["for_ms"], job.state in about["parks"]
                if free and not job.parked and (stream, job.entry) not in self.pending:
                    job.token = next(tokens)
                    self._put(call, job, stream)
                words.append("parked" if job.parked else "pausing")
        return words

    def _resume(self, call: Call) -> list[Any]:
        words, tokens = [], self._tokens_for(call)
        for place, (ref, token, stage) in enumerate(call.about["items"]):
            stream, front = call.keys[4 + 3 * place : 6 + 3 * place]
            job = self._job(ref, call.wall_ms)
            if job is None or job.state not in call.about["rules"] or not job.pause:
                words.append("gone" if job is None else "already")
            elif call.about["over"] and job.pause > call.now_ms:  # its timer looked before the clock went back
                words.append("moved")
            elif not job.parked:
                job.pause = 0
                words.append("resumed")
            elif job.token != token:
                words.append("moved")
            else:
                stream = front if job.logged else stream
                job.state, job.stage, job.stream = call.about["rules"][job.state], stage, stream
                job.deadline += call.now_ms - job.parked
                job.pause = job.parked = 0
                job.token = next(tokens)
                job.entry = self._added(stream, call.now_ms)
                words.append("resumed")
        return words

    def _stop(self, call: Call) -> list[Any]:
        words, at, about = [], 8, call.about
        for ref, _, _, *deadline in about["items"]:
            stream, at = call.keys[at + 2], at + 3
            job = self._job(ref, call.wall_ms)
            to = about["rules"].get(job.state) if job else None
            if job is None:
                words.append("gone")
            elif to is None:
                words.append("already")
            elif job.stream != stream or (deadline and (job.pause if job.parked else job.deadline) > call.now_ms):
                words.append("moved")
            elif to == about["done"] and (stream, job.entry) not in self.pending:
                self._ended(ref, job, call.keys[3], call.now_ms)
                words.append("ended")
            else:
                if to == about["done"]:
                    to, job.owner = about["stopping"], self.pending[stream, job.entry]
                    job.lease, job.until = call.now_ms + about["lease_ms"], call.now_ms + about["stop_ms"]
                job.state, job.ending = to, about["ending"]
                words.append("stopping")
        return words
