"""Continuous batching: a fixed number of slots, each with its place in the cache; a thread that reads and steps.

A slot keeps its text after an answer. A prompt that begins with the whole text of a free slot continues there, and only
the rest is read; any other takes an empty slot, or the one unused for longest, and is read from its first id on.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

READ_ROWS: Final = 16
READ_IDS: Final = 16_384  # of one batch of prompts, with padding


class Row(NamedTuple):
    """One slot's part of a batch: its new ids begin at `place`. `forced` is the id to take next, or -1."""

    slot: int
    ids: Sequence[int]
    place: int
    forced: int
    temperature: float
    greedy: bool


class Steps(Protocol):
    """`decoding.Stepper`: both take rows, and give the next id of each with its log-probability."""

    def read(self, batch: Sequence[Row]) -> Sequence[tuple[int, float]]: ...
    def step(self, batch: Sequence[Row]) -> Sequence[tuple[int, float]]: ...


class Call(msgspec.Struct, kw_only=True, eq=False):
    """One request. `forced`: the ids to say; empty: what is sampled."""

    request_id: str
    prompt: Sequence[int]
    max_tokens: int
    done: Callable[["Call"], None]  # called in the engine's thread
    forced: Sequence[int] = ()
    last: bool = False  # nothing follows in this text: its slot is emptied
    temperature: float = 1.0
    greedy: bool = False
    stop_ids: Sequence[int] = ()
    ids: list[int] = []
    logprobs: list[float] = []
    finish: str = ""
    cached: int = 0
    ended: bool = False  # the client has gone, or asked for an end

    def next_forced(self) -> int:
        return self.forced[len(self.ids)] if len(self.ids) < len(self.forced) else -1

    def take(self, token: int, logprob: float) -> bool:
        """True at its end."""
        self.ids.append(token)
        self.logprobs.append(logprob)
        if len(self.ids) == len(self.forced) or (not self.forced and token in self.stop_ids):
            self.finish = "stop"
        elif len(self.ids) >= self.max_tokens:
            self.finish = "length"
        elif self.ended:
            self.finish = "abort"
        return self.finish != ""


class Slot(msgspec.Struct, kw_only=True, eq=False):
    """`text`: the ids whose keys and values are in the cache."""

    number: int
    text: list[int] = []
    call: Call | None = None
    used: float = 0.0


class Counters(msgspec.Struct, kw_only=True):
    """Since the last reset. `busy_s`: a request was in flight."""

    busy_s: float = 0.0
    read_s: float = 0.0
    step_s: float = 0.0
    steps: int = 0
    rows: int = 0  # of all steps
    calls: int = 0
    tokens: int = 0
    read_tokens: int = 0
    cached_tokens: int = 0


class Engine:
    """`submit` from any thread."""

    def __init__(self, stepper: Steps, slots: int) -> None:
        self._stepper = stepper
        self._wake = threading.Condition()
        self._waiting: deque[Call] = deque()
        self._slots = [Slot(number=number) for number in range(slots)]
        self.counters = Counters()
        self.failed: BaseException | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join()

    def submit(self, call: Call) -> None:
        with self._wake:
            self._waiting.append(call)
            self._wake.notify()

    def reset(self) -> None:
        """Empties the cache of texts and the counters. Between two measurements, when nothing runs."""
        with self._wake:
            self.counters = Counters()
            for slot in self._slots:
                slot.text = []

    def _run(self) -> None:
        try:
            while self._work():
                began = time.perf_counter()
                self._read()
                self._step()
                self.counters.busy_s += time.perf_counter() - began
        except BaseException as error:  # the server must say it, and not hang
            self.failed = error
            raise

    def _work(self) -> bool:
        """Waits for some; False at the end."""
        with self._wake:
            self._wake.wait_for(lambda: self._stopping or self._waiting or any(slot.call for slot in self._slots))
            return not self._stopping

    def _read(self) -> None:
        """One batch of the prompts that wait, as far as slots are free."""
        placed: list[tuple[Slot, Row]] = []
        with self._wake:
            longest = 0
            while self._waiting and len(placed) < READ_ROWS:
                call = self._waiting[0]
                slot = call.ended or self._free(call)
                if slot is None:
                    break
                if isinstance(slot, bool):
                    call.finish = "abort"
                    self._waiting.popleft().done(call)
                    continue
                rest = call.prompt[len(slot.text) :]
                longest = max(longest, len(rest))
                if placed and longest * (len(placed) + 1) > READ_IDS:
                    break
                call.cached, slot.call = len(slot.text), self._waiting.popleft()
                self.counters.cached_tokens += call.cached
                self.counters.read_tokens += len(rest)
                row = Row(slot.number, rest, len(slot.text), call.next_forced(), call.temperature, call.greedy)
                placed.append((slot, row))
        if placed:
            began = time.perf_counter()
            chosen = self._stepper.read([row for _, row in placed])
            self.counters.read_s += time.perf_counter() - began
            for (slot, row), (token, logprob) in zip(placed, chosen, strict=True):
                slot.text += row.ids
                self._took(slot, token, logprob)

    def _step(self) -> None:
        running = [slot for slot in self._slots if slot.call is not None]
        if not running:
            return
        rows = []
        for slot in running:
            call = slot.call
            assert call is not None
            last = [call.ids[-1]]
            rows.append(Row(slot.number, last, len(slot.text), call.next_forced(), call.temperature, call.greedy))
        began = time.perf_counter()
        chosen = self._stepper.step(rows)
        self.counters.step_s += time.perf_counter() - began
        self.counters.steps += 1
        self.counters.rows += len(rows)
        for slot, row, (token, logprob) in zip(running, rows, chosen, strict=True):
            slot.text += row.ids
            self._took(slot, token, logprob)

    def _took(self, slot: Slot, token: int, logprob: float) -> None:
        call = slot.call
        assert call is not None
        self.counters.tokens += 1
        if call.take(token, logprob):
            self.counters.calls += 1
            slot.call, slot.used = None, time.monotonic()
            if call.last:
                slot.text = []
            call.done(call)

    def _free(self, call: Call) -> Slot | None:
        """The slot that this prompt continues, else an empty one, else the oldest, emptied; None while all run."""
        free = [slot for slot in self._slots if slot.call is None]
        prompt = call.prompt
        for slot in free:
            size = len(slot.text)
            if 0 < size < len(prompt) and prompt[size - 1] == slot.text[-1] and list(prompt[:size]) == slot.text:
                return slot
        if not free:
            return None
        slot = min(free, key=lambda slot: (slot.used if slot.text else 0.0, slot.number))
        slot.text = []
        return slot
