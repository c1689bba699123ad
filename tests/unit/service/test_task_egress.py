"""A task's hosts, as they are stored with its group."""

import pytest

from prorl_mq.errors import InvalidTask
from prorl_mq.schema.codec import decode
from prorl_mq.schema.items import GroupSpec
from prorl_mq.schema.messages import BatchRequest, GroupRequest, Task
from prorl_mq.schema.task_schema import Schema
from prorl_mq.service.submit import SentWith, new_group


def stored(*hosts: str) -> GroupSpec:
    group = GroupRequest(task=Task(task_id="t", data_source="d", egress=hosts))
    request = BatchRequest(run_id="r", batch_id="b", groups=[group])
    return decode(new_group(request, "default", 0, group, Schema(), SentWith()).open, GroupSpec)


def test_they_are_stored_in_one_form() -> None:
    assert stored("PyPI.org", "host:8443").egress == ["pypi.org:443", "host:8443"]


def test_one_that_cannot_be_read_is_refused_with_its_task() -> None:
    with pytest.raises(InvalidTask, match=r"task 't': egress: '127.0.0.1' does not name a host"):
        stored("127.0.0.1")
