"""A task's payload in its open and its sealed part."""

from typing import Any

import pytest

from prorl_mq.schema.codec import encode
from prorl_mq.schema.messages import Task
from prorl_mq.schema.task_schema import Schema, split

PAYLOAD: dict[str, Any] = {"tests": ["t"], "question": "?", "answer": "!", "hint": "h", "score": 1}


def task(**sealed: Any) -> Task:
    return Task(task_id="t", data_source="echo", payload=PAYLOAD, sealed=sealed)


@pytest.mark.parametrize(
    ("schema", "opened", "sealed"),
    [
        (
            Schema(optional=("question", "hint", "score"), sealed=("answer", "tests")),
            "question hint score",
            "tests answer",
        ),
        (Schema(optional=("question",), sealed=("answer",), seals_rest=True), "question", "tests answer hint score"),
        (Schema(optional=("question",), open_ended=True), "tests question answer hint score", ""),
    ],
)
def test_both_parts_are_in_the_order_of_the_payload(schema: Schema, opened: str, sealed: str) -> None:
    """Else the digest of the same task would be another one, and its repeat a conflict."""
    found = split(schema, task())
    assert [list(part) for part in found] == [opened.split(), sealed.split()]
    assert encode(found) == encode(split(schema, task()))


def test_what_was_sent_as_sealed_comes_behind_what_the_schema_seals() -> None:
    """A field of both is the sealed one's value, at its place."""
    schema = Schema(optional=("question", "hint", "score", "tests"), sealed=("answer",))
    assert split(schema, task(answer="!!", more=1))[1] == {"answer": "!!", "more": 1}


def test_the_payload_of_the_task_stays_whole() -> None:
    """The batch may be read again for another group."""
    split(Schema(optional=("question", "hint", "score", "tests"), sealed=("answer",)), task())
    assert list(PAYLOAD) == ["tests", "question", "answer", "hint", "score"]
