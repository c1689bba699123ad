"""Comparison of what a call answered with what it answers when it is made again, in a new sandbox."""

import re
from collections.abc import Sequence
from itertools import zip_longest
from typing import Final

from prorl_mq.schema.turns import CallResult

# What one command says differently in two sandboxes that are alike, each in the forms that tools print and no wider: of
# two answers that differ in content, none may pass for the other. One too few costs a rollout its turns, no more.
_DAY: Final = r"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),?\s)?"
_MONTH: Final = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_CLOCK: Final = r"\b\d{2}:\d{2}:\d{2}(?:[.,]\d+)?\b"
_VARYING: Final = re.compile(
    # A date with a time.
    r"\b\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?:Z|[+-]\d{2}:?\d{2})?\b"
    rf"|{_DAY}\b{_MONTH}\s+\d{{1,2}}\s+\d{{2}}:\d{{2}}\b(?::\d{{2}}\b)?(?:\s[A-Z]{{3,4}}\b)?(?:\s\d{{4}}\b)?"
    rf"|{_DAY}\b\d{{2}}\s{_MONTH}\s\d{{4}}\s{_CLOCK}|{_CLOCK}"
    r"|\bin\s\d+\.\d+\s?(?:s|seconds)\b|^(?:real|user|sys)\s+\d+m\d+\.\d+s$"  # durations: test runners, `time`
    r"|\bat\s0x[0-9a-f]{6,16}\b"  # places in memory, of Python's objects
    r"|/tmp/tmp(?:[a-z0-9_]{8}|\.[A-Za-z0-9]{10})\b"  # temporary files, of Python and mktemp
    r"|^\[(?:still running|stopped) after \d+ s\b",  # our own tools, of a call that had no more time
    re.MULTILINE,
)
# Digests of commits have their time in them; those of files have not.
_COMMITS: Final = re.compile(r"\bgit\b")
_COMMIT: Final = re.compile(r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])(?:[0-9a-f]{40}|[0-9a-f]{7,12})\b")
# The sandbox's own lines about a limit: how far it was passed by then is chance.
_LIMIT: Final = re.compile(r"^\[over the (?:memory|disk) limit: .*\]$", re.MULTILINE)
_MEASURED: Final = re.compile(r"\b\d+ MiB\b|(?<=\()\d+(?=\))")  # sizes, and numbers of processes
_BACKGROUND: Final = re.compile(r"(?<![&>])&(?![&>])")
_JOB: Final = re.compile(r"^(\[\d+\]) +\d+$", re.MULTILINE)


def alike(logged: CallResult, again: CallResult, asked: str, volatile: Sequence[str] = ()) -> bool:
    """True if a call that was made again has done what it did before, as far as its answer tells. `asked`: the call's
    arguments as text; `volatile`: regular expressions of what its task family says differently each time.
    """
    if (logged.ok, logged.refused) != (again.ok, again.refused):
        return False
    return logged.text == again.text or masked(logged.text, volatile, asked) == masked(again.text, volatile, asked)


def masked(text: str, volatile: Sequence[str] = (), asked: str = "") -> str:
    """An answer without what two sandboxes that are alike say differently."""
    for pattern in volatile:
        text = re.sub(pattern, "~", text, flags=re.MULTILINE)
    if _COMMITS.search(asked):
        text = _COMMIT.sub("~", text)
    if _BACKGROUND.search(asked):
        text = _JOB.sub(r"\1 ~", text)
    text = _LIMIT.sub(lambda line: _MEASURED.sub("~", line[0]), text)
    return _VARYING.sub("~", text)


def difference(logged: CallResult, again: CallResult) -> str:
    """Names the first line that differs."""
    pairs = zip_longest(logged.text.splitlines(), again.text.splitlines(), fillvalue="")
    one, other = next((pair for pair in pairs if pair[0] != pair[1]), ("", ""))
    return f"{one[:80]!r} was logged, now it is {other[:80]!r}"
