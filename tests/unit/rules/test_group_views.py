"""A group's summary stays small, whatever its samples say."""

from typing import Any

from prorl_mq.rules.group_views import summary_of
from prorl_mq.schema.messages import Outcome, SampleRecord


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
    about: dict[str, Any] = {
        "group_id": "g", "batch_id": "b", "task_id": "t", "data_source": "math", "state": "accepted", "n": 64,
        "jobs": 64, "policy_version": None,
    }  # fmt: skip
    failures = summary_of(records=records, **about).tool_failures
    assert len(failures) == 16
    assert next(iter(failures.items())) == ("bash", 128)
