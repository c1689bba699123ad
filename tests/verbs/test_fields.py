"""The field table of `job`, `group` and `batch` says what the scripts do, no more and no less."""

import re
from collections.abc import Iterator

import pytest

from prorl_mq.rules.dapo_report import COUNTERS
from prorl_mq.store import batches, jobs, scripts
from prorl_mq.store.layout.fields import BATCH, GROUP, JOB, Field

Table = dict[str, Field]
_CALL = re.compile(r"call\('(HSET|HGET|HMGET|HDEL|HINCRBY|HEXISTS|HGETALL)', ")
_LITERAL = re.compile(r"'([^']*)'")
_WRITES = {"HSET", "HINCRBY"}
_NAMED: dict[str, Table] = {"job": JOB, "group": GROUP, "B": BATCH, "origin": BATCH}
_TABLES: dict[str, Table] = {"job": JOB, "group": GROUP, "batch": BATCH}
_KEYS = re.compile(r"^-- KEYS:(.*?)(?:ARGV:|^--@)", re.DOTALL | re.MULTILINE)
_HEADED = re.compile(r"\b(\d+) (job|group|batch)\b(?=\s*(?:,|;|$))", re.MULTILINE)
_PER_ITEM: dict[str, dict[str, Table]] = {
    "ack": {"KEYS[key]": GROUP, "KEYS[key + 1]": BATCH},
    "admit": {"KEYS[key]": JOB},
    "renew": {"KEYS[3 + 2 * place]": JOB},
    "submit": {"KEYS[7 + 3 * place]": GROUP, "KEYS[key]": JOB},
    "wake": {"KEYS[2 + place]": GROUP},
}
# Hashes that are none of the three: of runs, pools, policies, workers and counters.
_OTHERS = {
    "ack": "KEYS[2] KEYS[5] KEYS[#KEYS]", "admit": "in_flight unacked", "announce": "KEYS[1]", "assign": "KEYS[2]",
    "arrive": "KEYS[1] KEYS[2] KEYS[4] KEYS[5] KEYS[15]", "bury": "KEYS[2]",
    "depart": "KEYS[1] KEYS[4] KEYS[5] KEYS[6] key",
    "give": "KEYS[1]", "refuse": "KEYS[1] KEYS[3]", "restore": "KEYS[1] KEYS[2] KEYS[4] KEYS[5]", "vacate": "KEYS[1]",
    "close": "KEYS[4]", "configure": "KEYS[1] KEYS[3]", "confirm": "counters in_flight", "draw": "KEYS[4]",
    "enroll": "KEYS[1] KEYS[3]", "finish": "counters in_flight", "fork": "KEYS[4] KEYS[12] KEYS[16]",
    "halt": "KEYS[6]", "join": "KEYS[2]", "leave": "KEYS[2]",
    "observe": "KEYS[1]", "progress": "KEYS[1] KEYS[2]", "open_epoch": "KEYS[1]",
    "reap": "counters in_flight KEYS[#KEYS]", "renew": "KEYS[3]", "retire_run": "KEYS[2]",
    "seat": "KEYS[1]", "settle": "KEYS[4] KEYS[#KEYS]", "shelve": "KEYS[3]", "stop": "counters in_flight",
    "submit": "KEYS[4] in_flight unacked", "switch": "KEYS[1]",
}  # fmt: skip


def arguments(text: str) -> list[str]:
    """The arguments of a call, from after its opening parenthesis on."""
    found, depth, start = [], 0, 0
    for at, sign in enumerate(text):
        if sign in "([{":
            depth += 1
        elif sign in ")]}":
            depth -= 1
        if depth < 0 or (sign == "," and depth == 0):
            found.append(text[start:at].strip())
            start = at + 1
        if depth < 0:
            return found
    raise AssertionError(text)


def accesses(verb: str) -> Iterator[tuple[str, str, str]]:
    """Command, key and field of each access to a hash in a script. A field ends with a colon where the rest varies."""
    code = "\n".join(line.partition("--")[0] for line in scripts.script(verb).text.splitlines())
    for match in _CALL.finditer(code):
        command, (key, *rest) = match[1], arguments(code[match.end() :])
        named = rest[::2] if command == "HSET" else rest if command in {"HMGET", "HDEL"} else rest[:1]
        for expression in named:
            yield from ((command, key, name) for name in _LITERAL.findall(expression) or [expression])


def headed(verb: str) -> dict[str, Table]:
    """Keys that the head of a script calls a job, a group or a batch, as `KEYS: 1 batch`."""
    keys = _KEYS.search(scripts.script(verb).text)
    return {f"KEYS[{number}]": _TABLES[name] for number, name in _HEADED.findall(keys[1] if keys else "")}


def touched() -> Iterator[tuple[str, str, Table, str]]:
    """Verb, command, table and field of each access to one of the three hashes."""
    for verb in scripts.names():
        known = _NAMED | _PER_ITEM.get(verb, {}) | headed(verb)
        for command, key, name in accesses(verb):
            table = known.get(key)
            if table is None:
                assert key in ["epoch_key", "away_key", *_OTHERS.get(verb, "").split()], f"{verb}: which hash is {key}?"
            else:
                yield from ((verb, command, table, each) for each in _names(name))


def _names(name: str) -> list[str]:
    """The fields of the table that a script means: the verdict's tally stands for every counter, the samples of a group
    for their records and time lines.
    """
    if name == "A.tally[at]":
        return [*COUNTERS]
    if name.startswith("unpack(theirs"):  # what `end_job` has put together for a group
        return ["s:", "t:"]
    return ["v:"] if name.startswith("v:") else [name]


def test_every_field_that_a_script_names_is_in_the_table() -> None:
    assert [(verb, name) for verb, _, table, name in touched() if name not in table] == []


@pytest.mark.parametrize("table", [JOB, GROUP, BATCH], ids=["job", "group", "batch"])
def test_the_table_names_each_verb_that_writes_a_field_and_no_other(table: Table) -> None:
    writers: dict[str, set[str]] = {name: set() for name in table}
    for verb, command, found, name in touched():
        if found is table and command in _WRITES:
            writers[name].add(verb)
    assert {name: set(field.written_by) for name, field in table.items()} == writers


def test_what_is_read_of_a_hash_is_in_the_table() -> None:
    assert set(jobs.FIELDS) <= set(JOB)
    assert {*batches.TEXTS, *batches.NUMBERS} <= set(BATCH)
