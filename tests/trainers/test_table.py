"""What the page says that bridges are tested with is what they are tested with."""

import re
from pathlib import Path

from tests.trainers.__main__ import TABLE

ROOT = Path(__file__).parents[2]
PINNED = ("ops/trainer-types.sh", "ops/trl.sh", "pyproject.toml")
ELSEWHERE = {"ProRL routes", "GEM"}  # of which the page names the target


def test_the_page_has_the_table_of_the_tests() -> None:
    page = (ROOT / "docs/howto/trainers.md").read_text().partition("## What has been tested with what")[2]
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| (run|parts|read) \|", page, re.MULTILINE)
    told = {(project, version, how) for project, version, how in rows if project not in ELSEWHERE}
    assert told == {(each.project, each.version.removeprefix("source of "), each.how) for each in TABLE}


def test_versions_that_were_not_read_are_those_that_are_installed() -> None:
    pinned = dict(re.findall(r"([\w-]+)==([\w.]+)", "\n".join((ROOT / name).read_text() for name in PINNED)))
    names = {
        each.project.lower().replace("agent lightning", "agentlightning").replace(" ", "-"): each for each in TABLE
    }
    read = {name: each.version for name, each in names.items() if each.how != "read"}
    assert read == {name: pinned[name] for name in read}
