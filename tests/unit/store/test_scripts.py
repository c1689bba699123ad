"""What every script has in common: a test, a method, no state of a job by name, and no key but those it is given."""

import re
from pathlib import Path

import pytest

from prorl_mq.schema.lifecycle import State, Verb
from prorl_mq.store import scripts, store, streams, work
from prorl_mq.store.verbs import jobs as job_verbs

VERBS = Path(__file__).parents[2] / "verbs"
WORDS = re.compile(r"""(["'])(.*?)(?<!\\)\1""")
# What a script answers may be the word of a state: `delayed` is what `fail` did, `stopping` what `stop` did.
REPLIES = re.compile(r"reply\[place\] = '[a-z ]+'")
KEYED = re.compile(r"call\('(?!XINFO|XGROUP|INFO|MEMORY|CLUSTER)[A-Z]+', ([^,)]+)")  # those name their key second
GIVEN = re.compile(
    r"KEYS\[.+|unpack\(KEYS|B|away_key|blob|counters|deadlines|due|duty|epoch_key|eval_bytes|from|group|heap|in_flight|job|key|open|origin|parked|paused_jobs|paused_runs"
    r"|reservoir|sealed|stream|theirs|timers|unacked|waiting"
)  # locals that hold a given key

names = pytest.mark.parametrize("name", scripts.names())


def code(name: str) -> str:
    lines = [line.partition("--")[0] for line in scripts.script(name).text.splitlines()]
    return "\n".join(lines)


@names
def test_a_script_has_a_test_module(name: str) -> None:
    assert (VERBS / f"test_{name}.py").exists()


@names
def test_a_script_has_a_typed_door(name: str) -> None:
    """A heartbeat is sent from a thread of its own, so its door makes the call and leaves the sending to it."""
    doors = {"renew": (job_verbs, "renewal"), "ensure": (streams, "ensure"), "enroll": (work, "enroll")}
    assert hasattr(*doors.get(name, (store.Store, name)))


def test_every_verb_is_a_script() -> None:
    shared = {Verb.CANCEL: "stop", Verb.EXPIRE: "stop", Verb.EVACUATE: "reap"}
    assert {shared.get(verb, verb.value) for verb in Verb} <= set(scripts.names())


@names
def test_a_script_holds_no_state_of_a_job(name: str) -> None:
    """Python decides which state follows: the names come with the rules of each call."""
    literals = {match[2] for match in WORDS.finditer(REPLIES.sub("", code(name)))}
    assert literals.isdisjoint({state.value for state in State} - {"state"})


@names
def test_a_script_touches_only_keys_that_it_was_given(name: str) -> None:
    """A key that a script builds itself would lie in another slot of a cluster, and no ACL would know it."""
    text = code(name)
    assert not [match[0] for match in WORDS.finditer(text) if re.search(r"[{}]", match[2])]
    assert not [match[0] for match in KEYED.finditer(text) if not GIVEN.fullmatch(match[1])]


@names
def test_a_script_that_running_work_needs_is_allowed_when_memory_is_full(name: str) -> None:
    """At maxmemory new work is refused, so that running work can complete."""
    first = scripts.script(name).text.splitlines()[0]
    adds = {"submit", "configure", "join", "fork", "place", "arrive"}
    assert first == ("#!lua" if name in adds else "#!lua flags=allow-oom")
