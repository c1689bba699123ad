"""A file of samples, its exports, and an archive: the same groups in every form that the page opens."""

from pathlib import Path

import pytest

from prorl_mq.archive.folder import Keeping
from prorl_mq.archive.shelf import Shelf
from prorl_mq.archive.table import WholeGroup
from prorl_mq.cli.out_file import OutFile
from prorl_mq.duties.archiving.writer import GroupWriter
from prorl_mq.schema.ids import run_ref
from prorl_mq.schema.messages import GroupRecord, Outcome, SampleRecord, Verdict
from tests.archive.groups import trajectory


def group(name: str) -> WholeGroup:
    """Two samples, of which one has a trajectory."""
    samples = [
        SampleRecord(job_id=f"r:{name}:0", index=0, outcome=Outcome.COMPLETED, reward=1.0, turns=2,
                     reward_parts={"tests": 1.0}, trajectory="blob"),
        SampleRecord(job_id=f"r:{name}:1", index=1, outcome=Outcome.AGENT_ERROR, reward=0.0, note="it said nothing"),
    ]  # fmt: skip
    record = GroupRecord(run_id="r", batch_id="b", group_id=name, task_id="t", data_source="d",
                         verdict=Verdict.ACCEPTED, samples=samples, n=2)  # fmt: skip
    return WholeGroup(record, {f"r:{name}:0": trajectory()})


GROUPS = [group(f"g{number}") for number in range(3)]


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    path = tmp_path / "out.jsonl"
    with OutFile(path) as out:
        for each in GROUPS:
            out.write(each.record, each.trajectories)
    return path


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    directory = tmp_path / "archive"
    directory.mkdir()
    keeping = Keeping(days=30, bytes=1 << 30)
    GroupWriter(Shelf(directory, "prorl")).write(run_ref("default", "r"), GROUPS, keeping, now_ms=1, data="mark")
    return directory
