"""The parts of the GPU benchmark that could make its figures wrong: its batching, and the script of the model.

What needs torch is compared with transformers by `make bench-gpu-quick`.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from bench.gpu.engine import Call, Engine, Row
from bench.gpu.script import ANSWER, COMMAND, Script

SLOTS = 2


class Recorded:
    """Takes the forced id, or the one behind the last of the row; may be held before each batch."""

    def __init__(self) -> None:
        self.read_rows: list[Row] = []
        self.most = 0
        self.open = threading.Event()
        self.open.set()

    def read(self, batch: Sequence[Row]) -> list[tuple[int, float]]:
        self.read_rows += batch
        return self.step(batch)

    def step(self, batch: Sequence[Row]) -> list[tuple[int, float]]:
        assert self.open.wait(30)
        self.most = max(self.most, len(batch))
        return [(row.forced if row.forced >= 0 else row.ids[-1] + 1, -float(row.place)) for row in batch]


@contextmanager
def engine_of(steps: Recorded) -> Iterator[Engine]:
    engine = Engine(steps, SLOTS)
    engine.start()
    try:
        yield engine
    finally:
        steps.open.set()
        engine.stop()


def ask(engine: Engine, *calls: Call) -> list[Call]:
    """All at once; returns when each has ended."""
    ended = threading.Semaphore(0)
    for call in calls:
        call.done = lambda _: ended.release()
        engine.submit(call)
    for call in calls:
        assert ended.acquire(timeout=30), f"{call.request_id} did not end: {engine.failed!r}"
    return list(calls)


def call(prompt: list[int], said: Sequence[int] = (), *, most: int = 9, last: bool = False) -> Call:
    return Call(
        request_id=str(prompt), prompt=prompt, forced=said, max_tokens=most, done=lambda _: None, last=last, ids=[],
        logprobs=[], stop_ids=(13,),
    )  # fmt: skip


def test_more_calls_than_slots_each_get_their_own_ids() -> None:
    steps = Recorded()
    with engine_of(steps) as engine:
        calls = ask(engine, *(call([10 * n, n], [100 * n + place for place in range(n + 1)]) for n in range(1, 6)))
    assert [each.ids for each in calls] == [[100 * n + place for place in range(n + 1)] for n in range(1, 6)]
    assert {each.finish for each in calls} == {"stop"}
    assert 1 <= steps.most <= SLOTS
    assert engine.counters.calls == len(calls)
    assert engine.counters.tokens == sum(len(each.ids) for each in calls)


def test_a_text_continues_in_its_slot_and_only_what_is_new_is_read() -> None:
    """The last sampled id has no keys yet, so it is read with what follows."""
    steps = Recorded()
    with engine_of(steps) as engine:
        [first] = ask(engine, call([1, 2, 3], [4, 5]))
        [other] = ask(engine, call([1, 2, 9], [4]))
        [after] = ask(engine, call([1, 2, 3, 4, 5, 6], [7]))
    assert [first.cached, other.cached, after.cached] == [0, 0, 4]
    assert [list(row.ids) for row in steps.read_rows] == [[1, 2, 3], [1, 2, 9], [5, 6]]
    assert steps.read_rows[-1].slot == steps.read_rows[0].slot
    assert steps.read_rows[-1].place == 4


def test_a_conversation_that_is_over_makes_room_before_one_that_may_continue() -> None:
    steps = Recorded()
    with engine_of(steps) as engine:
        ask(engine, call([1, 2], [3]))  # may continue, and is older
        ask(engine, call([4, 5], [6], last=True))
        ask(engine, call([7, 8], [9]))
        [after] = ask(engine, call([1, 2, 3, 4], [5]))
    assert after.cached == 2


def test_a_sampled_call_ends_at_its_stop_id_or_at_its_limit() -> None:
    with engine_of(Recorded()) as engine:
        stopped, full = ask(engine, call([11]), call([20], most=3))
    assert (stopped.ids, stopped.finish) == ([12, 13], "stop")
    assert (full.ids, full.finish) == ([21, 22, 23], "length")


def test_a_call_that_nobody_waits_for_ends_at_the_next_step() -> None:
    steps = Recorded()
    steps.open.clear()
    with engine_of(steps) as engine:
        left = call([20], most=1000)
        left.ended = True
        running = call([30], most=1000)
        ended = threading.Semaphore(0)
        for each in (running, left):
            each.done = lambda _: ended.release()
            engine.submit(each)
        running.ended = True
        steps.open.set()
        assert ended.acquire(timeout=30)
        assert ended.acquire(timeout=30)
    assert (left.finish, running.finish) == ("abort", "abort")
    assert len(running.ids) <= 2


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Three turns, with a tokenizer of single characters."""
    alphabet = [*map(chr, range(32, 127)), "\n"]
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>", "<tool_response>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return Script(tmp_path, turns=3, tokens=300)


def test_the_script_calls_a_tool_until_its_last_turn(script: Script, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    begin = tokenizer.encode("<|im_start|>assistant\n").ids
    prompt = [*tokenizer.encode("Begin.").ids, *begin]
    said = []
    for _ in range(3):
        found = script.reply(prompt)
        assert found is not None
        said.append((tokenizer.decode(found.ids, skip_special_tokens=False).replace(" ", ""), found.last))
        prompt = [*prompt, *found.ids, *tokenizer.encode("<tool_response>101").ids, *begin]
    assert [last for _, last in said] == [False, False, True]
    assert [COMMAND.replace(" ", "") in text for text, _ in said] == [True, True, False]
    assert said[-1][0].endswith(ANSWER.replace(" ", "") + "<|im_end|>")


def test_the_script_says_the_same_to_the_same_ids_and_nothing_to_a_probe(script: Script) -> None:
    assert script.reply([1]) is None
    begin = script._begin  # noqa: SLF001
    again, other = script.reply([1, *begin]), script.reply([2, *begin])
    assert script.reply([1, *begin]) == again
    assert again is not None
    assert other is not None
    assert other.ids != again.ids
