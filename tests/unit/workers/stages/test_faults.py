"""The table of faults is what happens: each class in it is tried, and no class with a cause is missing."""

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import sandbox
import workers
from prorl_mq.schema.codec import decode
from prorl_mq.schema.faults import Cause, cause_of
from prorl_mq.schema.ids import EntryId, JobRef, Token
from prorl_mq.schema.items import Claim, Fail, Finish, Held
from prorl_mq.schema.lifecycle import REFILLED
from prorl_mq.schema.messages import SampleRecord, Stage
from tests.support.queue import spec
from workers.handler import NodeCrowded, SandboxLost
from workers.stages import failures
from workers.stages.work import Carried, Work

PAGE = Path(__file__).parents[4] / "docs" / "reference" / "faults.md"
ROW = re.compile(r"^\| .*`.* \|$", re.MULTILINE)
ELSEWHERE = {"SandboxLost", "AlreadyKept", "TooStale", "NotNow"}  # not handed to `failed`, or of no worker


def rows() -> dict[str, list[str]]:
    """The cells behind each class of the first table."""
    table = PAGE.read_text().split("These are no exceptions")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in ROW.findall(table)]
    return {name: row[2:] for row in cells for name in re.findall(r"`(\w+)`", row[1])}


def classes() -> dict[str, type[Exception]]:
    """Every exception of ours that carries a cause."""
    for package in (workers, sandbox):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if "__main__" not in module.name and not module.name.startswith("sandbox.server"):
                importlib.import_module(module.name)
    found: dict[str, type[Exception]] = {}
    left: list[type[Exception]] = [Exception]
    while left:
        for kind in left.pop().__subclasses__():
            left.append(kind)
            ours = kind.__module__.split(".")[0] in {"workers", "sandbox", "prorl_mq"}
            if ours and hasattr(kind, "cause"):
                found[kind.__name__] = kind
    return found


def work(attempts: int) -> Work:
    held = Held(JobRef("acme:r:g:0"), Token("1.1"), EntryId("1-1"), Stage.RUN, None, "policy")
    return Work(held=held, claim=Claim("claimed", held.token, attempts), spec=spec())


def test_every_class_with_a_cause_is_in_the_table() -> None:
    assert sorted(set(classes()) - set(rows()) - ELSEWHERE) == []


@pytest.mark.parametrize("name", sorted(rows()))
def test_a_failure_becomes_what_its_row_says(name: str) -> None:
    blame, cause, outcome, reward, retried, refilled = rows()[name]
    builtins = {kind.__name__: kind for kind in (RuntimeError, TimeoutError, OSError, MemoryError)}
    error = {**classes(), **builtins}[name]("it broke")
    assert (cause_of(error).blame, cause_of(error)) == (blame, cause)
    first, last = (failures.failed(work(attempts), Carried(), error).item for attempts in (0, 2))
    retryable = bool(getattr(error, "retryable", True))
    assert retried in ("yes" if retryable else "no", "as the class says")
    assert isinstance(first, Fail) is retryable
    assert isinstance(last, Finish)
    record = decode(last.record, SampleRecord)
    assert record.error is not None
    assert (record.outcome, record.reward, record.error.cause) == (outcome, None, cause)
    assert (reward, refilled) == ("null", "yes" if record.outcome in REFILLED else "no")


def test_each_failed_attempt_writes_one_line_with_cause_and_traceback(caplog: pytest.LogCaptureFixture) -> None:
    failures.failed(work(0), Carried(), RuntimeError("it broke\nbadly"))
    [line] = caplog.records
    assert line.getMessage() == (
        "job=acme:r:g:0 stage=run attempt=1/3 cause=worker failed: RuntimeError: it broke badly"
    )
    assert line.exc_info is not None


def test_a_sandbox_that_failed_under_the_agent_is_repeated_whatever_the_limit_of_attempts() -> None:
    item = failures.doubted(work(attempts=2), SandboxLost("gone", None)).item
    assert isinstance(item, Fail)
    assert (item.stage, decode(item.carry, Carried).doubt) == (Stage.INIT, "SandboxLost: gone")


def test_eval_on_a_crowded_node_is_repeated_whatever_the_limit_of_attempts() -> None:
    item = failures.crowded(work(attempts=2), Carried(turns=3), NodeCrowded("no time")).item
    assert isinstance(item, Fail)
    assert (item.stage, decode(item.carry, Carried)) == (Stage.EVAL, Carried(turns=3, crowded=True))


def test_a_group_of_exceptions_has_the_cause_of_its_first() -> None:
    assert cause_of(ExceptionGroup("two", [TimeoutError(), ValueError()])) is Cause.TIMEOUT
