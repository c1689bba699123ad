"""Tasks are read strictly: a fault names its line."""

from pathlib import Path

import pytest

from prorl_mq.cli.submit import PART_GROUPS, batches
from prorl_mq.cli.tasks_file import TaskLine, assignments, located, read
from prorl_mq.errors import ConfigurationError
from prorl_mq.schema.messages import GroupRequest, Limits, Sampling, Task

GOOD = '{"task_id": "a", "data_source": "sums", "payload": {"x": 1}}'


def written(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "tasks.jsonl"
    path.write_text("\n".join(lines))
    return path


def test_tasks_and_group_requests_may_stand_in_one_file(tmp_path: Path) -> None:
    group = '{"task": {"task_id": "b"}, "n": 2, "group_id": "gb"}'
    lines = read(written(tmp_path, GOOD, "", group), n=4, data_source="other")
    assert [line.number for line in lines] == [1, 3]
    assert lines[0].group == GroupRequest(task=Task(task_id="a", data_source="sums", payload={"x": 1}), n=4)
    assert lines[1].group == GroupRequest(task=Task(task_id="b", data_source="other"), n=2, group_id="gb")


FAULTS = {
    "{": "this is not JSON",
    "[1]": "this is not a JSON object",
    '{"task_id": "b"}': "data_source is missing",
    '{"data_source": "sums"}': "task_id",
    '{"task_id": "b", "data_source": "sums", "paylod": {}}': "did you mean 'payload'?",
    '{"task": {"task_id": "b", "data_source": "sums"}, "n": 0}': "$.n",
}


@pytest.mark.parametrize("line", FAULTS)
def test_a_bad_line_is_named_by_its_number(tmp_path: Path, line: str) -> None:
    path = written(tmp_path, GOOD, "", line)
    with pytest.raises(ConfigurationError) as fault:
        read(path, n=1)
    assert str(fault.value).startswith(f"{path}:3: ")
    assert FAULTS[line] in str(fault.value)


def test_all_bad_lines_are_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as fault:
        read(written(tmp_path, *["{"] * 12), n=1)
    assert str(fault.value).count("this is not JSON") == 10
    assert str(fault.value).endswith("and 2 more lines")


def test_a_file_without_tasks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="has no tasks"):
        read(written(tmp_path, ""), n=1)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read(tmp_path / "missing.jsonl", n=1)


def test_assignments_fill_a_struct_and_name_what_is_wrong() -> None:
    assert assignments("--sampling", ["temperature=0.5", "max_turns=3"], Sampling) == Sampling(
        temperature=0.5, max_turns=3
    )
    for pair, said in (("temprature=1", "did you mean 'temperature'"), ("seed", "name=value"), ("top_p=x", "top_p")):
        with pytest.raises(ConfigurationError, match=said):
            assignments("--sampling", [pair], Sampling)


def test_the_services_complaint_gets_the_line_of_its_task() -> None:
    lines = [TaskLine(1, group("a")), TaskLine(7, group("b"))]
    assert located("task 'b' (sums) lacks 'x'", Path("t"), lines) == "t:7: task 'b' (sums) lacks 'x'"
    assert located("no room", Path("t"), lines) == "no room"


def test_the_same_content_makes_the_same_batch() -> None:
    """Else a repeated command would start everything again."""
    lines = [TaskLine(1, group("a"))]

    def name(lines: list[TaskLine], sampling: Sampling) -> str:
        [batch] = batches("r", None, lines, sampling, Limits())
        return batch.batch_id

    assert name(lines, Sampling()) == name([TaskLine(5, group("a"))], Sampling())
    assert (
        len({name(lines, Sampling()), name(lines, Sampling(seed=1)), name([TaskLine(1, group("b"))], Sampling())}) == 3
    )


def test_many_groups_become_several_batches() -> None:
    """The API takes no endless body."""
    lines = [TaskLine(place, group(str(place))) for place in range(PART_GROUPS + 1)]
    parts = batches("r", "b", lines, Sampling(), Limits())
    assert [(part.batch_id, len(part.groups)) for part in parts] == [("b.part1", PART_GROUPS), ("b.part2", 1)]


def group(task_id: str) -> GroupRequest:
    return GroupRequest(task=Task(task_id=task_id, data_source="sums"))
