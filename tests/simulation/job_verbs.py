"""What the scripts that move jobs should do: claim, renew, the commits, reap, promote and stop."""

from typing import Any

from tests.simulation.state import Call, State


class JobVerbs(State):
    """Each method answers the words of its script's reply."""

    def _claim(self, call: Call) -> list[Any]:
        words, tokens = [], self._tokens_for(call)
        for ref, entry, lease_ms, budget_ms in call.about["items"]:
            job = self._job(ref, call.wall_ms)
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
                job.token = next(tokens)
                job.lease = call.now_ms + min(lease_ms, budget_ms)
                words.append("claimed" if call.reply[len(words)][1].decode() == job.token else f"token {job.token}")
        return words

    def _divert(self, call: Call) -> list[Any]:
        words, source = [], call.keys[0]
        for place, (ref, entry) in enumerate(call.about["items"]):
            lane, job = call.keys[3 + 2 * place], self._job(ref, call.wall_ms)
            if job is None:
                words.append("gone")
            elif job.stream == lane:
                words.append("already")
            elif job.state not in call.about["rules"] or (job.entry, job.stream) != (entry, source):
                words.append("stale")
            else:
                self.pending.discard((source, entry))
                job.stream, job.entry = lane, self._added(lane, call.now_ms)
                words.append("diverted")
        return words

    def _renew(self, call: Call) -> list[Any]:
        words = []
        self.alive[call.about["name"]] = call.now_ms + call.about["alive_ms"]
        for ref, token, lease_ms in call.about["items"]:
            job = self._job(ref, call.wall_ms)
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
        for ref, token, entry, _, _, _ in call.about["items"]:
            job, refusal = self._commit(call, ref, token, entry, call.keys[0])
            if job is not None:
                self._ended(ref, job, call.keys[4], call.now_ms)
            words.append(refusal or "finished")
        return words

    def _fail(self, call: Call) -> list[Any]:
        words, at = [], 5
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
        words, at, about, tokens = [], 5, call.about, self._tokens_for(call)
        for ref, token, entry, stage, _, _, _, leased, _ in about["items"]:
            source, target = call.keys[at + 3], call.keys[at + 4]
            at += 5
            job = self._job(ref, call.wall_ms)
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
                    job.token, job.entry = next(tokens), self._added(target, call.now_ms)
                    words.append("requeued")
        return words

    def _promote(self, call: Call) -> list[Any]:
        words = []
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
                job.entry = self._added(stream, call.now_ms)
                words.append("promoted")
        return words

    def _stop(self, call: Call) -> list[Any]:
        words, at, about = [], 6, call.about
        for ref, _, _, *deadline in about["items"]:
            stream, at = call.keys[at + 2], at + 3
            job = self._job(ref, call.wall_ms)
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
