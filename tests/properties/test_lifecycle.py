"""The transition table itself, and the diagram that is made of it."""

import subprocess
import sys
from pathlib import Path

import pytest

from prorl_mq.schema.lifecycle import COUNTS, FIRST, REFILLED, TABLE, State, Verb, follows, mermaid, rules
from prorl_mq.schema.messages import Outcome

DIAGRAM = Path(__file__).parent.parent.parent / "docs" / "state_machine.md"


def reachable(start: State) -> set[State]:
    found, front = {start}, [start]
    while front:
        state = front.pop()
        for verb in Verb:
            new = set(follows(state, verb)) - found
            found |= new
            front += new
    return found


def test_every_state_is_reachable_from_the_first() -> None:
    assert reachable(FIRST) == set(State)


@pytest.mark.parametrize("state", list(State))
def test_every_state_leads_to_the_end_and_the_end_to_nothing(state: State) -> None:
    assert State.DONE in reachable(state)
    assert reachable(State.DONE) == {State.DONE}


def test_every_verb_but_admit_is_in_the_table() -> None:
    assert {verb for _, verb in TABLE} == set(Verb) - {Verb.ADMIT}


@pytest.mark.parametrize("verb", sorted({verb for _, verb in TABLE}))
def test_rules_name_only_what_the_table_allows_and_leave_no_choice_to_the_script(verb: Verb) -> None:
    for to in (None, *State):
        for state, after in rules(verb, to=to).items():
            assert State(after) in follows(State(state), verb)
            assert to in {None, State(after)}
    covered = {state for to in (None, *State) for state in rules(verb, to=to)}
    assert covered == {state.value for state, each in TABLE if each is verb}


def test_only_a_holder_may_end_a_job_as_it_likes() -> None:
    assert {state for (state, verb) in TABLE if verb is Verb.FINISH} == {State.QUEUED, State.LEASED}
    assert {state for (state, verb) in TABLE if verb is Verb.CONFIRM} == {State.STOPPING}


def test_no_outcome_both_counts_and_is_refilled() -> None:
    assert COUNTS.isdisjoint(REFILLED)
    assert set(Outcome) - COUNTS - REFILLED == {Outcome.CANCELLED, Outcome.EXPIRED}


def test_the_module_prints_its_diagram() -> None:
    command = [sys.executable, "-m", "prorl_mq.schema.lifecycle"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout
    assert printed.strip() == mermaid()


@pytest.mark.skipif(not DIAGRAM.exists(), reason="the page is not written yet")
def test_the_page_shows_the_diagram_of_this_table() -> None:
    assert mermaid() in DIAGRAM.read_text()
