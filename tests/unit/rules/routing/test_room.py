"""Room in the caches of backends: who begins, who waits, and for how long."""

import math
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_mq.rules.routing import pressure, room
from prorl_mq.rules.routing.pressure import CacheLimit
from prorl_mq.rules.routing.room import Ask, Seat, SeatState, decide

A, B = "http://a", "http://b"
LIFE_MS = 30_000.0
NOW_MS = 1_000_000.0
PATIENCE_MS = 300_000.0


def ask(ref: str, tokens: int = 100, at: str = A, *, since: float = NOW_MS, warm: bool = False) -> Ask:
    return Ask(ref, at, tokens, since, warm, PATIENCE_MS)


def seat(tokens: int, state: SeatState = SeatState.RUNNING, at: str = A, *, since: float = NOW_MS) -> Seat:
    return Seat(at, tokens, state, since, NOW_MS + LIFE_MS)


def test_a_turn_begins_where_its_session_fits_and_waits_where_it_does_not() -> None:
    seats = {"one": seat(800)}
    assert decide(seats, {A: CacheLimit(950)}, [ask("small"), ask("large", 200)], NOW_MS, LIFE_MS) == [A, ""]
    assert seats["small"].state is SeatState.RUNNING
    assert seats["large"].state is SeatState.WAITING


def test_a_backend_without_a_limit_has_room_for_all() -> None:
    seats = {"one": seat(10_000, at=B)}
    assert decide(seats, {A: CacheLimit(10)}, [ask("any", 5_000, B)], NOW_MS, LIFE_MS) == [B]


def test_a_session_that_is_larger_than_its_backend_begins_when_nothing_runs_there() -> None:
    seats: dict[str, Seat] = {}
    assert decide(seats, {A: CacheLimit(10)}, [ask("huge", 5_000)], NOW_MS, LIFE_MS) == [A]
    assert decide(seats, {A: CacheLimit(10)}, [ask("other", 5_000)], NOW_MS, LIFE_MS) == [""]


def test_one_whose_tools_are_done_pushes_out_those_whose_tools_work_longest_and_no_more_than_it_needs() -> None:
    tools = SeatState.TOOLS
    long = seat(150, tools, since=NOW_MS - 60_000)
    seats = {"runs": seat(400), "mine": seat(200, tools), "short": seat(100, tools), "long": long}
    assert decide(seats, {A: CacheLimit(800)}, [ask("mine", 220)], NOW_MS, LIFE_MS) == [A]
    assert (seats["long"].state, seats["short"].state) == (SeatState.OUT, tools)


def test_one_that_was_pushed_out_waits_like_a_new_one() -> None:
    seats = {"runs": seat(400), "mine": seat(200, SeatState.OUT), "small": seat(300, SeatState.TOOLS)}
    assert decide(seats, {A: CacheLimit(800)}, [ask("mine", 220, warm=True)], NOW_MS, LIFE_MS) == [""]
    assert seats["small"].state is SeatState.TOOLS


def test_one_that_waits_moves_to_another_backend_where_there_is_room() -> None:
    seats = {"runs": seat(900), "there": seat(100, at=B)}
    assert decide(seats, {A: CacheLimit(950), B: CacheLimit(950)}, [ask("new", 300)], NOW_MS, LIFE_MS) == [B]
    assert decide(seats, {A: CacheLimit(950), B: CacheLimit(400)}, [ask("next", 300)], NOW_MS, LIFE_MS) == [""]


def test_no_session_moves_to_a_backend_that_takes_none() -> None:
    """As one that is drained, or lacks announced weights; the control is the test before."""
    seats = {"runs": seat(900), "there": seat(100, at=B)}
    for behind in (True, False):
        limits = {A: CacheLimit(950, behind), B: CacheLimit(950)}
        assert decide(dict(seats), limits, [ask("new", 300)], NOW_MS, LIFE_MS, {A}) == [""]
        assert decide(dict(seats), limits, [ask("new", 300)], NOW_MS, LIFE_MS, {A, B}) == [B]


def test_a_row_that_waits_is_written_again_when_half_of_its_life_is_over_or_it_has_changed() -> None:
    seats = {"runs": seat(900)}
    limits = {A: CacheLimit(950)}

    def asked(after_ms: float, tokens: int = 300) -> Seat:
        seats["runs"] = seat(900)._replace(until_ms=NOW_MS + 10 * LIFE_MS)
        again = ask("waits", tokens, since=NOW_MS + after_ms % 7)  # clocks of processes drift
        assert decide(seats, limits, [again], NOW_MS + after_ms, LIFE_MS) == [""]
        return seats["waits"]

    first = asked(0)
    assert asked(1_000) is asked(LIFE_MS / 2 - 1_000) is first
    assert asked(LIFE_MS / 2 + 1_000) == first._replace(until_ms=NOW_MS + 1.5 * LIFE_MS + 1_000)
    assert asked(LIFE_MS / 2 + 2_000, 400).tokens == 400


def test_the_oldest_has_the_room_first() -> None:
    seats = {"runs": seat(500), "old": seat(300, SeatState.WAITING, since=NOW_MS - 9_000)}
    assert decide(seats, {A: CacheLimit(950)}, [ask("young", 200)], NOW_MS, LIFE_MS) == [""]
    asks = [ask("old", 300, since=NOW_MS - 9_000), ask("young", 90)]
    assert decide(seats, {A: CacheLimit(950)}, asks, NOW_MS, LIFE_MS) == [A, A]


@pytest.mark.parametrize("opening", ["same", "other"])
def test_a_prompt_that_sessions_have_in_common_counts_once(opening: str) -> None:
    """Its blocks are in the cache once. The control: prompts of their own."""
    seats = {f"s{at}": seat(300)._replace(opening="same", shared=250) for at in range(3)}
    mine = ask("mine", 300)._replace(opening=opening, shared=250)
    asked = decide(seats, {A: CacheLimit(500)}, [mine], NOW_MS, LIFE_MS)
    assert asked == ([A] if opening == "same" else [""])


def test_a_prompt_in_common_counts_while_one_of_its_sessions_does() -> None:
    seats = {f"s{at}": seat(300, SeatState.TOOLS)._replace(opening="same", shared=250) for at in range(2)}
    seats["runs"] = seat(100)
    ledger = room._Ledger(seats, {A: CacheLimit(500)}, NOW_MS, {A})
    assert ledger.loads[A].tokens == 100 + 250 + 2 * 50
    for ref, tokens in (("s0", 100 + 250 + 50), ("s1", 100)):
        ledger.add(ref, -1)
        assert ledger.loads[A].tokens == tokens


def test_whoever_could_not_make_room_enough_pushes_nobody_out() -> None:
    seats = {"runs": seat(600), "tools": seat(300, SeatState.TOOLS), "mine": seat(200, SeatState.TOOLS)}
    before = dict(seats)
    assert decide(seats, {A: CacheLimit(800)}, [ask("mine", 220, warm=True)], NOW_MS, LIFE_MS) == [""]
    assert seats["tools"] == before["tools"]


def test_one_that_cannot_fit_beside_what_runs_holds_nobody_back() -> None:
    """It begins once its backend is idle, or its patience is over. The control fits once tools took long."""
    for tokens, passed in ((900, True), (600, False)):
        seats = {
            "runs": seat(200),
            "tools": seat(300, SeatState.TOOLS),
            "big": seat(tokens, SeatState.WAITING, since=NOW_MS - 9_000),
        }
        answers = decide(seats, {A: CacheLimit(950)}, [ask("young", 50), ask("other", 50)], NOW_MS, LIFE_MS)
        assert answers == ([A, A] if passed else ["", ""])
    idle = {"big": seat(900, SeatState.WAITING, since=NOW_MS - 9_000), "young": seat(50, SeatState.TOOLS)}
    assert decide(idle, {A: CacheLimit(950)}, [ask("big", 900, since=NOW_MS - 9_000)], NOW_MS, LIFE_MS) == [A]


def test_nobody_waits_for_longer_than_its_patience() -> None:
    seats = {"runs": seat(900)}
    assert decide(seats, {A: CacheLimit(950)}, [ask("old", 900, since=NOW_MS - PATIENCE_MS)], NOW_MS, LIFE_MS) == [A]


def test_the_seat_of_a_worker_that_died_ends_by_itself() -> None:
    seats = {"dead": seat(900), "waited": seat(900, SeatState.WAITING, since=0.0)}
    later = NOW_MS + LIFE_MS + 1
    assert decide(seats, {A: CacheLimit(950)}, [ask("new", 900, since=later)], later, LIFE_MS) == [A]
    assert list(seats) == ["new"]


@pytest.mark.parametrize(("runs", "begins"), [(200, True), (400, False)])
def test_what_is_kept_for_tools_goes_to_whoever_waits_before_a_backend_idles(runs: int, begins: bool) -> None:
    """To one that is new here, the oldest of those that wait. The control: a backend that has enough to do."""
    longest = seat(300, SeatState.TOOLS, since=NOW_MS - 20_000)
    seats = {"runs": seat(runs), "shorter": seat(250, SeatState.TOOLS, since=NOW_MS - 4_000), "longest": longest}
    waits = {"young": seat(300, SeatState.WAITING, since=NOW_MS - 1_000),
             "oldest": seat(300, SeatState.WAITING, since=NOW_MS - 2_000)}  # fmt: skip
    asks = [ask(ref, 300, since=each.since_ms) for ref, each in waits.items()]
    made = seats | waits
    assert decide(made, {A: CacheLimit(1_000)}, asks, NOW_MS, LIFE_MS) == ["", A if begins else ""]
    assert (made["longest"].state is SeatState.OUT, made["shorter"]) == (begins, seats["shorter"])


@pytest.mark.parametrize(("since_s", "begins"), [(40, True), (20, False)])
def test_tools_that_work_for_long_give_their_room_to_whoever_waits_longest(since_s: int, begins: bool) -> None:
    """Also where the backend has enough to do. The control: tools that have worked for less."""
    seats = {"runs": seat(500), "tools": seat(400, SeatState.TOOLS, since=NOW_MS - since_s * 1_000)}
    assert decide(seats, {A: CacheLimit(1_000)}, [ask("new", 300)], NOW_MS, LIFE_MS) == [A if begins else ""]
    assert (seats["tools"].state is SeatState.OUT) is begins


@pytest.mark.parametrize(("tokens", "passed"), [(800, True), (700, False)])
def test_one_that_does_not_fit_beside_what_runs_keeps_no_backend_idle(tokens: int, passed: bool) -> None:
    """The control fits once the tools have lost their room, and is the older one."""
    seats = {"runs": seat(250), "tools": seat(700, SeatState.TOOLS), "big": seat(tokens, SeatState.WAITING, since=1.0)}
    assert decide(seats, {A: CacheLimit(1_000)}, [ask("young")], NOW_MS, LIFE_MS) == [A if passed else ""]


def test_a_backend_with_room_is_asked_before_tools_lose_theirs() -> None:
    seats = {"runs": seat(100), "tools": seat(800, SeatState.TOOLS)}
    assert decide(seats, {A: CacheLimit(950), B: CacheLimit(950)}, [ask("new", 300)], NOW_MS, LIFE_MS) == [B]
    assert seats["tools"].state is SeatState.TOOLS


def test_synchronised_tools_let_somebody_begin() -> None:
    """All sessions are between turns, and none of them fits beside the others: the control has no such rule."""
    seats = {f"s{at}": seat(500, SeatState.TOOLS) for at in range(10)}
    asks = [ask(f"s{at}", 600) for at in range(10)]
    answers = decide(seats, {A: CacheLimit(950)}, asks, NOW_MS, LIFE_MS)
    assert answers.count(A) == 1
    assert {each.state for each in seats.values()} == {SeatState.RUNNING, SeatState.WAITING}


SIZES = st.integers(1, 2_000)
STATES = st.sampled_from(list(SeatState))
Shares = TypeVar("Shares", Seat, Ask)


def shares(draw: st.DrawFn, made: Shares) -> Shares:
    """One that shares its opening with others, or with nobody."""
    opening = draw(st.sampled_from(["", "x", "y"]))
    return made._replace(opening=opening, shared=min(made.tokens, {"": 0, "x": 50, "y": 800}[opening]))


@st.composite
def ledgers(draw: st.DrawFn) -> tuple[dict[str, Seat], dict[str, CacheLimit], list[Ask]]:
    seats = {
        f"s{at}": shares(draw, Seat(draw(st.sampled_from([A, B])), draw(SIZES), draw(STATES),
                                    NOW_MS - draw(st.integers(0, 200_000)), NOW_MS + draw(st.integers(-10, 10_000))))
        for at in range(draw(st.integers(0, 8)))
    }  # fmt: skip
    limits = {
        address: CacheLimit(draw(st.integers(0, 5_000)), draw(st.booleans()))
        for address in draw(st.lists(st.sampled_from([A, B]), unique=True))
    }
    asks = [
        shares(draw, Ask(ref, draw(st.sampled_from([A, B])), draw(SIZES), NOW_MS - draw(st.integers(0, 400_000)),
                         draw(st.booleans()), PATIENCE_MS))
        for ref in draw(st.lists(st.sampled_from([f"s{at}" for at in range(12)]), unique=True, max_size=6))
    ]  # fmt: skip
    return seats, limits, asks


@given(ledgers())
def test_whatever_stands_in_the_ledger_it_keeps_its_promises(
    made: tuple[dict[str, Seat], dict[str, CacheLimit], list[Ask]],
) -> None:
    """No seat outlives its time, who waited long enough begins, and a backend on which nothing runs lets one begin."""
    seats, limits, asks = made
    for each in asks:
        before = dict(seats)
        [answer] = decide(seats, limits, [each], NOW_MS, LIFE_MS)
        assert set(seats) == {ref for ref, seat in before.items() if seat.until_ms >= NOW_MS} | {each.ref}
        mine = seats[each.ref]
        assert mine.tokens == each.tokens
        assert (mine.state is SeatState.WAITING) == (answer == "")
        if each.address not in limits or NOW_MS - each.since_ms >= PATIENCE_MS:
            assert answer == each.address
        if answer == "":
            others = [seat for ref, seat in seats.items() if ref != each.ref and seat.address == each.address]
            assert any(seat.state is SeatState.RUNNING for seat in others), "somebody runs, so room will be free"


PARTS = st.sampled_from(["r", "1", "-1", "9e999", "NaN", "x"])


@given(
    st.text(max_size=40)
    | st.builds("{} {} {} {} {}".format, PARTS, PARTS, PARTS, PARTS, PARTS)
    | st.builds("r 9 1 2 http://a {} {}".format, PARTS, PARTS)
)
def test_whatever_stands_in_a_row_is_a_sound_seat_or_nothing(text: str) -> None:
    found = room.read_seat(text)
    assert found is None or (math.isfinite(found.since_ms) and math.isfinite(found.until_ms))
    limit = pressure.read_limit(text)
    assert limit is None or 0 <= limit.tokens <= pressure.MOST


@given(st.integers(0, pressure.MOST), STATES, st.integers(0, 2**50), st.integers(0, 2**50))
def test_a_seat_and_a_limit_are_read_as_they_were_written(
    tokens: int, state: SeatState, since: int, until: int
) -> None:
    made = Seat(A, tokens, state, float(since), float(until))
    for each in (made, made._replace(opening="1f", shared=tokens // 2)):
        assert room.read_seat(each.text) == each
    assert pressure.read_limit(CacheLimit(tokens, tokens % 2 == 0).text) == CacheLimit(tokens, tokens % 2 == 0)


@given(ledgers())
def test_sums_of_a_ledger_are_those_of_its_seats(
    made: tuple[dict[str, Seat], dict[str, CacheLimit], list[Ask]],
) -> None:
    """Whoever begins and whoever is pushed out: that one is still a session of its backend."""
    seats, limits, asks = made
    ledger = room._Ledger(seats, limits, NOW_MS, limits)
    for each in asks:
        address = ledger.place(each)
        state = SeatState.RUNNING if address else SeatState.WAITING
        seats[each.ref] = each.seat(address or each.address, state, each.since_ms, NOW_MS + LIFE_MS)
        ledger.add(each.ref)
        again = room._Ledger(dict(seats), limits, NOW_MS, limits)
        assert (ledger.sessions, ledger.runs) == (again.sessions, again.runs)
        assert [each.tokens for each in ledger.busy.values()] == [each.tokens for each in again.busy.values()]
        loads = {at: each.tokens for at, each in again.loads.items()}
        assert {at: each.tokens for at, each in ledger.loads.items()} == pytest.approx(loads, abs=1e-6)
        for rows, others in ((ledger.between, again.between), (ledger.waits, again.waits)):
            assert {at: sorted(each) for at, each in rows.items()} == {at: sorted(each) for at, each in others.items()}
