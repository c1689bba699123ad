"""Samples become tables: every number as it was, every column as the docs say, and no half file."""

import json
import re
from pathlib import Path
from typing import Any

import datasets
import pytest
from pyarrow import parquet

from prorl_mq.cli.out_file import OutFile
from prorl_mq.converters.arrow import arrow_schema
from prorl_mq.converters.table import Row
from prorl_mq.schema.messages import GroupRecord, Outcome, Verdict
from tests.cli.conftest import prorl
from tests.converters.made import compacted, sample, with_tools

ROOT = Path(__file__).parents[2]


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    """A file as `submit` leaves it: one with tools, one of three segments, one that infrastructure lost."""
    made = [
        sample(job_id="r:g:0", index=0),
        sample(job_id="r:g:1", index=1, reward=1 / 3),
        sample(job_id="r:g:2", index=2, outcome=Outcome.INFRA_ERROR, reward=None, replaced=True),
    ]
    record = GroupRecord(
        run_id="r", batch_id="b", group_id="g", task_id="t", data_source="d", verdict=Verdict.ACCEPTED, samples=made,
        n=2,
    )  # fmt: skip
    path = tmp_path / "samples.jsonl"
    with OutFile(path) as out:
        out.write(record, {"r:g:0": with_tools().trajectory, "r:g:1": compacted().trajectory})
    return path


def exported(samples: Path, out: Path, *more: object) -> Path:
    done = prorl("export", samples, "--out", out, *more)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("5 rows are in ")
    return out


def test_the_three_forms_hold_the_same_rows(samples: Path, tmp_path: Path) -> None:
    lines = exported(samples, tmp_path / "out.jsonl").read_text().splitlines()
    rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
    assert parquet.read_table(exported(samples, tmp_path / "out.parquet")).to_pylist() == rows
    assert datasets.load_from_disk(str(exported(samples, tmp_path / "set"))).to_list() == rows
    assert [(row["job_id"], row["segment"], row["segments"]) for row in rows] == [
        ("r:g:0", 0, 1), ("r:g:1", 0, 3), ("r:g:1", 1, 3), ("r:g:1", 2, 3), ("r:g:2", None, 0),
    ]  # fmt: skip


def test_ids_and_log_probabilities_are_the_backends(samples: Path, tmp_path: Path) -> None:
    table = parquet.read_table(exported(samples, tmp_path / "out.parquet")).to_pylist()
    for row, segment in zip(table, [*with_tools().trajectory.segments, *compacted().trajectory.segments], strict=False):
        told = (row["prompt_ids"], row["response_ids"], row["loss_mask"], row["logprobs"])
        assert told == (
            list(segment.prompt_ids), list(segment.response_ids), list(segment.loss_mask), list(segment.logprobs),
        )  # fmt: skip
    assert (table[1]["reward"], table[4]["reward"]) == (1 / 3, None)
    roles = [message["role"] for message in table[0]["messages"]]
    assert roles == ["user", "assistant", "tool", "assistant", "tool", "assistant"]


def test_the_documented_columns_are_the_columns() -> None:
    text = (ROOT / "docs/reference/export.md").read_text()
    documented = re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", text, re.MULTILINE)
    kinds = {field.name: str(field.type) for field in arrow_schema()}
    assert documented == list(kinds.items())
    assert list(kinds) == list(Row.__struct_fields__)


@pytest.mark.parametrize("text", [b'{"job_id": "x"}', b'{"job_id": ' + b"[" * 20_000], ids=["less", "nested"])
def test_what_is_no_sample_is_named_and_leaves_nothing(samples: Path, tmp_path: Path, text: bytes) -> None:
    with samples.open("ab") as file:
        file.write(text + b"\n")
    done = prorl("export", samples, "--out", tmp_path / "out.parquet")
    assert (done.returncode, f"{samples}:4 is not a sample" in done.stderr) == (2, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["samples.jsonl"]


def test_a_target_that_is_there_is_left_alone(samples: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("mine")
    done = prorl("export", samples, "--out", out)
    assert (done.returncode, out.read_text()) == (2, "mine")
    assert "already exists" in done.stderr
