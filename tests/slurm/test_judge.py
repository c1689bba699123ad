"""The judges of the tests on a real Slurm notice what they are for."""

from pathlib import Path

import pytest

from prorl_mq.schema.messages import GroupRecord, Outcome, SampleRecord, Verdict
from tests.slurm.real.work import expect_first_attempts, unfinished

UNLEASED = "1\treap\tinit\t1-a.1\tapi\t\n2\tclaim\tinit\t1-a.2\tw\t\n"
LEASED = "1\tclaim\tinit\t1-a.2\tw\t\n2\treap\tinit\t1-a.2\tapi\t\n"


def record(timeline: str, attempt: int) -> GroupRecord:
    sample = SampleRecord(job_id="j", index=0, outcome=Outcome.COMPLETED, attempt=attempt)
    return GroupRecord(
        run_id="r", batch_id="b", group_id="g", task_id="t", data_source="chaos", verdict=Verdict.ACCEPTED, n=1,
        samples=[sample], timelines={"j": timeline},
    )  # fmt: skip


def test_a_job_that_was_read_alone_has_not_begun() -> None:
    expect_first_attempts([record(UNLEASED, 1), record(LEASED, 0), record("", 0)])


@pytest.mark.parametrize(("timeline", "attempt"), [(LEASED, 1), (UNLEASED, 2), (UNLEASED + LEASED, 2), ("", 1)])
def test_what_has_begun_again_is_noticed(timeline: str, attempt: int) -> None:
    with pytest.raises(AssertionError, match="j: "):
        expect_first_attempts([record(timeline, attempt)])


def test_a_file_that_was_begun_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "watch").mkdir()
    (tmp_path / "watch" / "history.jsonl").touch()
    assert unfinished(tmp_path) == []
    (tmp_path / "watch" / "history.new").touch()
    assert unfinished(tmp_path) == [str(tmp_path / "watch" / "history.new")]
