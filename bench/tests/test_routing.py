"""The simulated backends count what they hold, and the rules do what the benchmark says of them."""

import random
from functools import partial
from itertools import islice
from pathlib import Path

import msgspec
import pytest

from bench.routing.cases import Case, simulate
from bench.routing.engine import Clock, Costs, Engine, Request
from bench.routing.simulator import Disturbance
from bench.routing.workload import BLOCK, Mix, TraceUnread, generated, recorded
from prorl_mq.converters.routing_trace import TraceHead, TraceSession, TraceTurn
from prorl_mq.rules.routing.room import Ask, Seat, _Sum

SMALL = Mix(turns=6.0, prompt=1_500.0)


def test_an_engine_gives_every_token_and_forgets_no_block() -> None:
    """In a cache that is far too small requests are preempted, and all come to their end."""
    clock, source, done = Clock(), random.Random(1), list[Request]()
    engine = Engine(clock, "b", Costs(tokens=40 * BLOCK), BLOCK)
    for number in range(60):
        prompt, answer = source.randrange(100, 3_000), source.randrange(1, 2_000)
        names = range(number * 1_000, number * 1_000 + 40)
        clock.at(source.random() * 5, partial(engine.submit, Request(names, prompt, answer, done.append)))
    for second in range(2_000):
        clock.run(float(second))
        assert len(engine._held) + len(engine._free) <= engine.room  # noqa: SLF001
    assert len(done) == 60
    assert all(each.tokens == each.goal for each in done)
    assert engine.preempted
    assert not engine._held  # noqa: SLF001


def test_a_prefix_that_was_there_a_moment_ago_is_computed_once() -> None:
    clock, done = Clock(), list[Request]()
    engine = Engine(clock, "b", Costs(), BLOCK)
    for at in (0.0, 100.0):
        clock.at(at, lambda: engine.submit(Request(range(20), 10 * BLOCK, 10, done.append)))
    clock.run(200.0)
    assert [each.cached for each in done] == [0, 9 * BLOCK]


def test_too_many_sessions_spoil_a_sticky_pool_and_room_keeps_it() -> None:
    """The control is the same pool without the rule."""
    mix = Mix(prompt=5_000.0, tools_s=3.0)
    figures = {rule: simulate(Case(rule, rule, 260, 1, mix, None, None, 300.0, 150.0)) for rule in ("sticky", "room")}
    assert figures["sticky"]["hits"] < 0.6 < figures["room"]["hits"]
    assert figures["room"]["tokens_s"] > 1.1 * figures["sticky"]["tokens_s"]


def test_nothing_waits_where_there_is_room_for_all() -> None:
    same = [simulate(Case(rule, rule, 30, 1, SMALL, None, None, 200.0, 50.0)) for rule in ("sticky", "room")]
    assert same[1]["longest_wait_s"] == 0.0
    assert same[0]["tokens_s"] == same[1]["tokens_s"]


def test_tools_that_answer_together_stop_nobody() -> None:
    case = Case("room", "room", 250, 2, SMALL, None, Disturbance(tick_s=20.0, restart_s=60.0), 200.0, 50.0)
    assert simulate(case)["tokens_s"] > 500


def test_a_recorded_trace_is_replayed(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    sessions = [
        TraceSession(
            run=1, group=group, sample=sample, began_s=0.0, outcome="completed",
            blocks=[[group * 100 + at for at in range(4)]],
            turns=[TraceTurn(segment=0, prompt=400, answer=100, cached=None, started_s=0, llm_s=1, tools_s=2),
                   TraceTurn(segment=0, prompt=600, answer=50, cached=400, started_s=3, llm_s=1, tools_s=0)],
        )
        for group in range(1, 4) for sample in range(2)
    ]  # fmt: skip
    path.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in [TraceHead(), *sessions]))
    block, found = recorded(path)
    assert (block, len(found)) == (128, 6)
    assert simulate(Case("sticky", "sticky", 4, 1, None, path, None, 100.0, 10.0))["hits"] > 0.5
    path.write_bytes(path.read_bytes() + b"{}\n")
    with pytest.raises(TraceUnread, match=":8 is no line of a trace"):
        recorded(path)


def test_generated_sessions_of_a_group_share_their_prompt_and_grow_in_whole() -> None:
    eight = list(islice(generated(Mix(), 1), 8))
    assert len({each.group for each in eight}) == 1
    shared = eight[0].steps[0].prompt // BLOCK
    assert len({tuple(each.blocks[0][:shared]) for each in eight}) == 1
    for each in eight:
        ends = [step.prompt + step.answer for step in each.steps]
        assert all(later.prompt > end for end, later in zip(ends, each.steps[1:], strict=False))
        assert len(each.blocks[-1]) * BLOCK > ends[-1]


@pytest.mark.parametrize("shared", [True, False])
def test_prompts_that_samples_share_park_nobody_who_fits(shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a long prompt one copy is in the cache. The control counts one for each sample, and is worse than no rule."""
    if not shared:
        monkeypatch.setattr(Ask, "seat", lambda ask, *about: Seat(about[0], ask.tokens, *about[1:]))
        monkeypatch.setattr(_Sum, "joined", lambda load, ask: load.tokens + ask.tokens)
    mix = Mix(prompt=40_000.0, prompt_spread=0.1, turns=8.0, result=300.0)
    found = {rule: simulate(Case(rule, rule, 150, 1, mix, None, None, 300.0, 100.0)) for rule in ("sticky", "room")}
    assert (found["room"]["tokens_s"] > 1.1 * found["sticky"]["tokens_s"]) is shared
