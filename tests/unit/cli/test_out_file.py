"""The output file has each sample once, whatever was interrupted."""

import json
import resource
from pathlib import Path

import pytest

from prorl_mq.cli.out_file import OutFile
from prorl_mq.errors import ConfigurationError
from prorl_mq.schema.messages import GroupRecord, Outcome, SampleRecord, Verdict
from prorl_mq.schema.trajectory import Segment, Trajectory


def record(group: str = "g", n: int = 2) -> GroupRecord:
    samples = [
        SampleRecord(job_id=f"r:{group}:{index}", index=index, outcome=Outcome.COMPLETED, reward=1.0, trajectory="blob")
        for index in range(n)
    ]
    return GroupRecord(
        run_id="r", batch_id="b", group_id=group, task_id="t", data_source="sums", verdict=Verdict.ACCEPTED,
        samples=samples, n=n,
    )  # fmt: skip


def jobs(path: Path) -> list[str]:
    return [json.loads(line)["job_id"] for line in path.read_text().splitlines()]


def test_a_line_holds_the_sample_and_its_tokens(tmp_path: Path) -> None:
    segment = Segment(prompt_ids=[1], response_ids=[2], loss_mask=[1], logprobs=[-0.5])
    trajectory = Trajectory(segments=[segment], turns=[], stop_reason="answer")
    with OutFile(tmp_path / "out") as out:
        out.write(record(), {"r:g:0": trajectory})
    first, second = (json.loads(line) for line in (tmp_path / "out").read_text().splitlines())
    assert (first["task_id"], first["outcome"], first["reward"], first["verdict"]) == (
        "t",
        "completed",
        1.0,
        "accepted",
    )
    assert first["trajectory"]["segments"][0]["logprobs"] == [-0.5]
    assert second["trajectory"] is None


def test_a_group_that_comes_again_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with OutFile(path) as out:
        out.write(record(), {})
        out.write(record(), {})
    with OutFile(path) as out:
        assert out.has("r", "g")
        assert not out.has("r", "h")
        out.write(record(), {})
    assert jobs(path) == ["r:g:0", "r:g:1"]


def test_half_a_line_is_cut_off_and_written_again(tmp_path: Path) -> None:
    """What a kill in the middle of a write leaves."""
    path = tmp_path / "out"
    with OutFile(path) as out:
        out.write(record(), {})
    path.write_bytes(path.read_bytes()[:-40])
    with OutFile(path) as out:
        assert not out.has("r", "g")
        out.write(record(), {})
        assert out.has("r", "g")
    assert jobs(path) == ["r:g:0", "r:g:1"]


@pytest.mark.parametrize("text", ["dear diary\n", "[" * 20_000 + "\n"], ids=["text", "nested"])
def test_a_file_with_other_content_is_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "notes"
    path.write_text(text)
    for fresh in (False, True):
        with pytest.raises(ConfigurationError, match="notes:1 is not a sample"):
            OutFile(path, fresh=fresh)
    assert path.read_text() == text


def test_a_file_has_one_writer(tmp_path: Path) -> None:
    with OutFile(tmp_path / "out"), pytest.raises(ConfigurationError, match="another process is writing"):
        OutFile(tmp_path / "out")


def test_a_fresh_file_forgets_earlier_samples(tmp_path: Path) -> None:
    with OutFile(tmp_path / "out") as out:
        out.write(record(), {})
    with OutFile(tmp_path / "out", fresh=True) as out:
        assert not out.has("r", "g")
        out.write(record("h"), {})
    assert jobs(tmp_path / "out") == ["r:h:0", "r:h:1"]


def test_a_full_disk_is_named_and_the_next_start_goes_on(tmp_path: Path) -> None:
    """A limit on the size of files cuts a write as a full disk does."""
    path = tmp_path / "out"
    with OutFile(path) as out:
        out.write(record("g"), {})
        size = path.stat().st_size
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, before[1]))
        try:
            with pytest.raises(ConfigurationError, match=r"out cannot be written: .*run the same command again"):
                out.write(record("h"), {})
            out.__exit__(None, None, None)  # closing tries once more to write what is left, and may not raise
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.stat().st_size == size + 10
    with OutFile(path) as out:
        assert (out.has("r", "g"), out.has_some("r", "h")) == (True, False)
        out.write(record("h"), {})
    assert jobs(path) == ["r:g:0", "r:g:1", "r:h:0", "r:h:1"]


def failed(path: Path, *records: GroupRecord) -> None:
    """A command that has written so much when the service is lost."""
    with OutFile(path) as out:
        for each in records:
            out.write(each, {})
        raise ConnectionError


def test_a_command_that_fails_removes_an_empty_file_of_its_own_alone(tmp_path: Path) -> None:
    """As `submit` at a wrong address: an empty file looks like a result."""
    with pytest.raises(ConnectionError):
        failed(tmp_path / "new")
    with pytest.raises(ConnectionError):
        failed(tmp_path / "written", record())
    (tmp_path / "there").touch()
    with pytest.raises(ConnectionError):
        failed(tmp_path / "there")
    assert {path.name for path in tmp_path.iterdir()} == {"written", "there"}
