"""A group's summary stays small, whatever its samples say."""

from typing import Any

from prorl_mq.rules.group_views import summary_of
from prorl_mq.schema.messages import Outcome, SampleRecord

ABOUT: dict[str, Any] = {
    "group_id": "g", "batch_id": "b", "task_id": "t", "data_source": "math", "state": "accepted", "n": 64,
    "jobs": 64, "policy_version": None,
}  # fmt: skip


def graded(index: int, note: str | None, reward: float | None = 0.0) -> SampleRecord:
    return SampleRecord(job_id=f"r:g:{index}", index=index, outcome=Outcome.COMPLETED, reward=reward, note=note)


def test_a_summary_says_how_often_graders_said_what_of_samples_without_a_reward() -> None:
    """Those of a judge are alike; of the others four are enough, each cut: a page of groups has hundreds."""
    votes = [graded(number, "judge j: NO") for number in range(2)]
    others = [graded(2 + number, f"{number} " + "x" * 500) for number in range(8)]
    right = graded(10, "judge j: YES", 1.0)
    notes = summary_of(records=[*others, right, *votes, graded(11, None)], **ABOUT).notes
    assert next(iter(notes.items())) == ("judge j: NO", 2)
    assert len(notes) == 4
    assert {len(note) for note in notes} == {11, 160}


def test_a_summary_names_the_tools_that_failed_most_and_no_more() -> None:
    """Models invent names: each sample's sixteen may be others."""
    records = [
        SampleRecord(
            job_id=f"r:g:{index}",
            index=index,
            outcome=Outcome.COMPLETED,
            tool_failures={"bash": 2} | {f"made up {index} {number}": 1 for number in range(15)},
        )
        for index in range(64)
    ]
    failures = summary_of(records=records, **ABOUT).tool_failures
    assert len(failures) == 16
    assert next(iter(failures.items())) == ("bash", 128)
