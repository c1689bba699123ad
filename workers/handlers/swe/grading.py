"""From what the judge saw to a reward: forgery first, then SWE-bench's own rules."""

import re
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from workers.handler import Score
from workers.handlers.swe.canaries import Canary
from workers.handlers.swe.rows import Hidden, SweTask
from workers.handlers.swe.styles import Style, line

TESTS_FAILED = 1  # the runners' exit code; the canaries see to it that no honest run has another
_BAD = ("FAILED", "ERROR")
_STATUSES = (*_BAD, "PASSED", "SKIPPED", "XFAIL", "XPASS")
_WORST = (*_BAD, "SKIPPED", "XFAIL", "XPASS", "PASSED")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """The judge's word on one run."""

    nonce: str
    statuses: Sequence[tuple[str, str, str]]  # a test's name, how it ended, what a log calls it
    ended: bool
    forged: bool
    timed_out: bool
    exit_code: int | None
    printed: str
    wall_s: float = 0.0
    cpu_s: float = 0.0  # when the time was over: what processes had used, and how long they had waited for a CPU
    starved_s: float = 0.0


def forgery(judged: Judged, planted: Sequence[Canary]) -> str | None:
    """Why a run cannot be believed, if it cannot."""
    if judged.timed_out:
        return "the tests did not come to an end"
    if not judged.ended:
        return f"the test run ended before its time, with exit code {judged.exit_code}"
    told = {name: status for name, status, _ in judged.statuses}
    if judged.forged or len(told) != len(judged.statuses) or not _is_plain(judged.statuses):
        return "somebody else wrote into the report"
    watched = [canary for canary in planted if any(name.startswith(canary.place) for name in told)]
    if any(told.get(canary.name) not in _BAD for canary in watched):
        return "a test that must fail did not"
    if watched and judged.exit_code != TESTS_FAILED:
        return f"tests failed, and their runner ended with exit code {judged.exit_code}"
    return None


def _is_plain(statuses: Sequence[tuple[str, str, str]]) -> bool:
    """True if a log of them says of each test one thing: no line breaks, no second word on a test, no other status.

    Django's log shows the docstring of a test that has one, which several may share: it names none of them.
    """
    once = {each: status for _, status, each in statuses}
    shared = {each for _, status, each in statuses if status != once[each]}
    return (
        shared.isdisjoint(shown for name, _, _ in statuses for shown in _lines_of(name))
        and all(status in _STATUSES for _, status, _ in statuses)
        and not any("\n" in text or "\r" in text for name, _, each in statuses for text in (name, each))
    )


def _lines_of(name: str) -> tuple[str, str, str]:
    """A test as a log names it: pytest's way, unittest's before 3.11, and since."""
    group, _, method = name.rpartition(".")
    return name, f"{method} ({group})", f"{method} ({name})"


def both_ways(first: Judged, second: Judged, turned: Collection[str], planted: Sequence[Canary]) -> str | None:
    """Why tests that passed cannot be believed, after some of them were run as their opposites."""
    if (forged := forgery(second, planted)) is not None:
        return f"{forged}, when tests were their opposites"
    passed = {name for name, status, _ in first.statuses if status == "PASSED"}
    told = {name: status for name, status, _ in second.statuses}
    for name in passed:
        if name.split("[", 1)[0] in turned and told.get(name, "PASSED") == "PASSED":
            return "a test and its opposite both pass"
    return None


def log_of(style: Style, judged: Judged, planted: Sequence[Canary]) -> str:
    """A log as the project's own runner writes it, between SWE-bench's markers.

    What failed stands last, as in pytest's summary: parsers cut parameters at a space, and take the last of one name.
    Of tests that share a line the worst counts, so that none can speak for another; SymPy's go `_as_sympy`.
    """
    ours = {canary.name for canary in planted}
    if style == "functions":
        told = _as_sympy([each for each in judged.statuses if each[0] not in ours])
        return between_markers(line(style, status, shown) for shown, status in told)
    worst: dict[str, str] = {}
    for name, status, shown in judged.statuses:
        if name not in ours:
            worst[shown] = min(status, worst.get(shown, status), key=_WORST.index)
    told = sorted(worst.items(), key=lambda each: _STATUSES[::-1].index(each[1]))
    return between_markers(line(style, status, shown) for shown, status in told)


def _as_sympy(statuses: Sequence[tuple[str, str, str]]) -> list[tuple[str, str]]:
    """Tests in an order in which SWE-bench's parser reads of each name what it reads in SymPy's own log.

    A log's lines have names without files, and the parser takes the last of a name. It cannot read a file's last test,
    whose line ends in `[OK]` or `[FAIL]`. So these come first here: each counts unless a later file has its name.
    """
    last = {name.split("::", 1)[0]: name for name, _, _ in statuses}
    behind = [(shown, status) for name, status, shown in statuses if name not in last.values()]
    return [(shown, status) for name, status, shown in statuses if name in last.values()] + behind


def between_markers(lines: Iterable[str]) -> str:
    """Lines of a log as SWE-bench looks for them."""
    from swebench.harness.constants import END_TEST_OUTPUT, START_TEST_OUTPUT

    return "\n".join([START_TEST_OUTPUT, *lines, END_TEST_OUTPUT, ""])


def scored(task: SweTask, hidden: Hidden, parser: str, log: str) -> Score:
    """Blocks for milliseconds. The reward is 1 where SWE-bench calls the instance resolved."""
    from swebench.harness.constants import FAIL_TO_PASS, PASS_TO_PASS
    from swebench.harness.grading import get_eval_report
    from swebench.types import TestSpec

    spec = TestSpec(
        instance_id=task.instance_id, image="", eval_script_list=[], repo=task.project, version=task.version,
        FAIL_TO_PASS=list(hidden.fail_to_pass), PASS_TO_PASS=list(hidden.pass_to_pass),
        log_parser=parser, eval_type="pass_and_fail",
    )  # fmt: skip
    prediction = {"instance_id": task.instance_id, "model_name_or_path": "policy", "model_patch": "applied"}
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".log") as file:
        file.write(log)
        file.flush()
        report: Mapping[str, Any] = get_eval_report(spec, prediction, file.name, include_tests_status=True)
    found = report[task.instance_id]
    parts = {
        part: _share(found.get("tests_status", {}).get(name, {}))
        for part, name in (("fail_to_pass", FAIL_TO_PASS), ("pass_to_pass", PASS_TO_PASS))
    }
    if found["resolved"]:
        return Score(reward=1.0, parts=parts)
    return Score(reward=0.0, parts=parts, note=_note(found))


def scored_r2e(hidden: Hidden, judged: Judged, planted: Sequence[Canary]) -> Score:
    """R2E-Gym: every expected test has its expected status, by its name without the file."""
    ours = {canary.name for canary in planted}
    told = {
        ".".join(name.split("::")[1:]): status
        for name, status, _ in judged.statuses
        if "::" in name and name not in ours
    }
    expected = {plain: status for name, status in hidden.expected.items() if (plain := _plain(name))}
    wrong = [name for name, status in expected.items() if told.get(name) != status]
    right = 1 - len(wrong) / max(len(expected), 1)
    if expected and not wrong:
        return Score(reward=1.0, parts={"expected": right})
    return Score(reward=0.0, parts={"expected": right}, note=f"not as expected: {', '.join(wrong[:5])}"[:300])


def _plain(name: str) -> str:
    """Without the colours that pytest gave it when the row was made, and without the reason of a failure."""
    return _COLOUR.sub("", name).split(" - ", 1)[0].strip()


def _share(lists: Mapping[str, Sequence[str]]) -> float:
    done, failed = (len(lists.get(name, ())) for name in ("success", "failure"))
    return done / (done + failed) if done + failed else 0.0


def _note(found: Mapping[str, Any]) -> str:
    lists = found.get("tests_status", {})
    failed = [name for kind in ("FAIL_TO_PASS", "PASS_TO_PASS") for name in lists.get(kind, {}).get("failure", ())]
    return f"{len(failed)} tests fail: {', '.join(failed[:5])}"[:300] if failed else "no test could be counted"
