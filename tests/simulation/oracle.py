"""The step oracle: after every call, each word of the reply is the one that the model predicts."""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from prorl_mq.store import scripts
from prorl_mq.store.layout.keys import Keys
from tests.simulation.model import Model
from tests.simulation.network import Logged
from tests.simulation.state import Call

WITHOUT_EPOCH = frozenset({"ensure", "open_epoch", "put"})  # scripts that make no tokens, cursors or states
REFUSED = ("EPOCH", "NOSCRIPT", "No matching script", "OOM")  # errors that are answers
CURSOR = re.compile(r"\d+-\d+")
NOTHING = msgspec.msgpack.encode({})


class Oracle:
    """Watches the server. Its first disagreement is a violation; from then on it is silent, since the model is off."""

    def __init__(self, keys: Keys, counts: "Counter[str]") -> None:
        self.violations: list[str] = []
        self.model = Model()
        self.published: dict[str, set[int]] = {}  # group → how many samples it had had when its record was made
        self._keys = keys
        self._counts = counts
        made = [scripts.script(name) for name in scripts.names()]
        self._names = {**{each.sha: each.name for each in made}, **{each.text: each.name for each in made}}

    def __call__(self, wall_us: int, command: tuple[Any, ...], reply: Any) -> None:
        word = command[0]
        if self.violations:
            return
        if isinstance(reply, Exception):
            if word in {"EVALSHA", "EVAL"} and not str(reply).startswith(REFUSED):
                self.violations.append(f"a script failed: {reply}")
            return
        if word in {"EVALSHA", "EVAL"}:
            self._script(wall_us, command, reply)
        elif word == "XREADGROUP":
            for stream, entries in reply or ():
                self.model.read(stream.decode(), [entry.decode() for entry, _ in entries], command[3])
        elif word in {"ZADD", "ZREM"} and str(command[1]).endswith("paused:runs"):
            self.model.paused_runs[str(command[-1])] = float(command[2]) if word == "ZADD" else 0
        elif word == "XACK":
            self.model.acknowledged(command[1], [str(entry) for entry in command[3:]])

    def rebuilt(self, log: Iterable[Logged]) -> None:
        """The server has lost all that its log lacks: so does the model."""
        self.model = Model()
        for each in log:
            if not each.commands:
                self.model.server = each.packed.decode()
            for command, reply in zip(each.commands, each.replies, strict=True):
                self(each.wall_us, command, reply)

    def _script(self, wall_us: int, command: tuple[Any, ...], reply: Any) -> None:
        name, last = self._names.get(command[1], ""), 3 + command[2]
        packed = command[last] if len(command) > last else NOTHING
        if not name or not isinstance(packed, bytes):
            return
        about = msgspec.msgpack.decode(packed)
        keys = command[5 if about.get("of_run") else 4 : last]  # after the epoch's, and that of where the run is
        call = Call(name, keys, about, wall_us, self.model.offset_ms, self.model.floor_ms, reply)
        words = said(reply)
        for each in words:
            self._counts[f"{name}: {'taken' if name == 'hold' and each != 'held' else each}"] += 1
        if not self.model.epoch_is_open and name not in WITHOUT_EPOCH:
            self.violations.append(f"{name} answered {words} before an epoch was open on this server: {_items(call)}")
        if call.about.get("epoch", self.model.epoch_text) != self.model.epoch_text:
            self.violations.append(f"{name} answered {words} to a caller of another epoch: {_items(call)}")
        known = self.model.about(call)
        expected = self.model.expect(call)
        if name == "settle" and words == ["published"]:
            ref = call.about["ref"]
            self.published.setdefault(ref, set()).add(self.model.admitted.get(ref, 0))
        if expected is not None and expected != words:
            self.violations.append(f"{name} answered {words}, the model says {expected}: {_items(call)}; {known}")


def said(reply: Any) -> list[Any]:
    """The words of a script's reply. A place in a result stream is `published`, numbers stay as they are."""
    return [_word(each) for each in (reply if isinstance(reply, list) else [reply])]


def _word(each: Any) -> Any:
    if isinstance(each, list):
        return _word(each[0])
    if not isinstance(each, bytes):
        return each
    word = each.decode(errors="replace")
    return "published" if CURSOR.fullmatch(word) else word


def _items(call: Call) -> str:
    return str(call.about.get("items", call.about))[:800]
