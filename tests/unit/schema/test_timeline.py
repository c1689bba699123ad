"""A time line says how long each state lasted, and what each attempt of a stage had."""

from prorl_mq.cli import looking
from prorl_mq.schema.lifecycle import State
from prorl_mq.schema.messages import JobStatus, Outcome, events
from prorl_mq.schema.timeline import timeline

STATUS = JobStatus(
    job_id="r:g:0", group_id="g", batch_id="b", run_id="r", state="done", stage=None, attempt=2, owner=None,
    outcome=Outcome.COMPLETED, why="ended as completed; its group was accepted",
)  # fmt: skip
ROWS = (
    (1000, "admit", "init", "", "", "submitted_ms=400"),
    (1500, "claim", "init", "1", "i1", ""),
    (2000, "fail", "init", "1", "i1", "it broke"),
    (4000, "promote", "init", "", "api", ""),
    (4100, "claim", "init", "2", "i2", ""),
    (5000, "advance", "run", "2", "i2", "sandbox=n1/local/box"),
    (5100, "claim", "run", "3", "r1", ""),
    (5200, "assign", "run", "3", "r1", "http://b1"),
    (6200, "assign", "run", "3", "r1", "http://b2"),
    (9000, "reap", "init", "3", "api", ""),
    (9500, "claim", "init", "5", "i1", ""),
    (9600, "advance", "run", "5", "i1", "sandbox=n1/local/other"),
    (9700, "claim", "run", "6", "r2", ""),
    (9900, "advance", "eval", "6", "r2", ""),
    (9950, "claim", "eval", "7", "e1", ""),
    (9990, "finish", "eval", "7", "e1", "completed"),
)


def line(rows: tuple[tuple[object, ...], ...] = ROWS) -> str:
    return "".join("\t".join(map(str, row)) + "\n" for row in rows)


def test_every_change_has_its_state_and_how_long_it_lasted() -> None:
    made = timeline(STATUS, events("r:g:0", line()), 20_000)
    told = [(each.event, each.state, each.seconds) for each in made.changes]
    assert told[:6] == [
        ("admit", State.QUEUED, 0.5),
        ("claim", State.LEASED, 0.5),
        ("fail", State.DELAYED, 2.0),
        ("promote", State.QUEUED, 0.1),
        ("claim", State.LEASED, 0.9),
        ("advance", State.QUEUED, 0.1),
    ]
    assert told[9] == ("reap", State.QUEUED, 0.5)
    assert told[-1] == ("finish", State.DONE, None)
    assert (made.submitted_ms, made.cut) == (400, False)


def test_every_attempt_has_its_worker_sandbox_and_backends() -> None:
    made = timeline(STATUS, events("r:g:0", line()), 20_000)
    told = [
        (each.stage, each.number, each.worker, each.waited_s, each.held_s, each.ended_by, each.sandbox)
        for each in made.attempts
    ]
    assert told == [
        ("init", 1, "i1", 0.5, 0.5, "fail", None),
        ("init", 2, "i2", 0.1, 0.9, "advance", "n1/local/box"),
        ("run", 1, "r1", 0.1, 3.9, "reap", "n1/local/box"),
        ("init", 3, "i1", 0.5, 0.1, "advance", "n1/local/other"),
        ("run", 2, "r2", 0.1, 0.2, "advance", "n1/local/other"),
        ("eval", 1, "e1", 0.05, 0.04, "finish", None),
    ]
    assert [list(each.backends) for each in made.attempts if each.stage == "run"] == [["http://b1", "http://b2"], []]
    assert made.attempts[0].detail == "it broke"


def test_what_goes_on_lasts_until_now() -> None:
    """A job that is told to stop is held until its worker confirms."""
    rows = (*ROWS[:8], (5300, "cancel", "run", "3", "api", ""))
    made = timeline(STATUS, events("r:g:0", line(rows)), 6300)
    assert (made.changes[-1].state, made.changes[-1].seconds) == (State.STOPPING, 1.0)
    assert (made.attempts[-1].held_s, made.attempts[-1].ended_by) == (1.2, None)
    ended = timeline(STATUS, events("r:g:0", line((*rows, (5400, "cancelled", "run", "3", "r1", "stopped_ms=100")))), 0)
    assert (ended.changes[-1].state, ended.attempts[-1].ended_by) == (State.DONE, "cancelled")


def test_a_time_line_without_its_beginning_says_so() -> None:
    made = timeline(STATUS, events("r:g:0", line(ROWS[9:])), 20_000)
    assert (made.submitted_ms, made.cut, made.changes[0].state) == (None, True, State.QUEUED)
    assert "only the newest 64 events are kept" in looking.timeline_text(made)


def test_an_event_of_a_newer_release_changes_no_state_and_stops_nobody() -> None:
    rows = (*ROWS[:2], (1600, "teleport", "init", "1", "i1", ""), ROWS[2])
    made = timeline(STATUS, events("r:g:0", line(rows)), 20_000)
    told = [(each.event, each.state, each.seconds) for each in made.changes]
    assert told[1:] == [
        ("claim", State.LEASED, 0.1), ("teleport", State.LEASED, 0.4), ("fail", State.DELAYED, 18.0),
    ]  # fmt: skip


def test_a_job_that_waits_for_admission_has_done_nothing() -> None:
    made = timeline(STATUS, [], 20_000)
    assert (made.changes, made.attempts, made.cut) == ([], [], False)
    assert looking.timeline_text(made).startswith("r:g:0: done as completed")


def test_the_text_has_a_line_for_each_change_and_each_attempt() -> None:
    text = looking.timeline_text(timeline(STATUS, events("r:g:0", line()), 20_000)).splitlines()
    assert text[0] == "r:g:0: done as completed; ended as completed; its group was accepted"
    assert text[2] == "submitted 1970-01-01 00:00:00.400+00:00"
    [failed] = [each for each in text if "it broke" in each]
    assert failed.split() == ["1.600", "fail", "init", "delayed", "2.000", "i1", "it", "broke"]
    [moved] = [each for each in text if "http://b2" in each and "http://b1" in each]
    assert moved.split()[:6] == ["run", "1", "0.1", "3.9", "reap", "r1"]
