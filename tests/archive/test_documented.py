"""The queries that the guide shows give what the archive holds."""

import re
from pathlib import Path
from typing import Any

import duckdb
import pytest

from prorl_mq.archive.shelf import Shelf
from prorl_mq.duties.archiving.writer import GroupWriter
from prorl_mq.schema.ids import run_ref
from tests.archive.test_once import KEEPING, NOW_MS, whole

GUIDE = Path(__file__).parents[2] / "docs" / "howto" / "archive.md"


@pytest.fixture
def query(shelf: Shelf) -> dict[str, str]:
    """The guide's queries, by their language, over an archive of two groups."""
    groups = [whole("g"), whole("h")]
    run = run_ref("default", "RUN")
    GroupWriter(Shelf(shelf.directory, "prorl")).write(run, groups, KEEPING, now_ms=NOW_MS, data="mark")
    found = dict(re.findall(r"```(sql|python)\n(.*?)```", GUIDE.read_text(), re.DOTALL))
    return {name: text.replace("STATE/redis/archive", str(shelf.directory)) for name, text in found.items()}


def test_pyarrow_reads_each_sample_once(query: dict[str, str]) -> None:
    names: dict[str, Any] = {}
    exec(query["python"], names)
    assert names["rewards"].to_pylist() == [{"batch_id": "b", "reward_mean": 1.0}]
    assert names["table"].num_rows == 2


def test_duckdb_reads_each_sample_once(query: dict[str, str]) -> None:
    assert duckdb.execute(query["sql"]).fetchall() == [("b", 2, 1.0, 0.0)]
