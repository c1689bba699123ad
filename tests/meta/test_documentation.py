"""The pages for people name what there is: links lead somewhere, indexes are whole, and named tests exist."""

import inspect
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from prorl_mq import errors
from prorl_mq.schema.lifecycle import Verb
from prorl_mq.schema.messages import Outcome
from prorl_mq.schema.timeline import PARKED

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"\]\(([^)\s]+)\)")


def pages() -> list[Path]:
    below = [page for folder in (DOCS, ROOT / "examples") for page in folder.rglob("*.md")]
    return sorted([*ROOT.glob("*.md"), *below, ROOT / "bench" / "README.md"])


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file(page: Path) -> None:
    links = [link.partition("#")[0] for link in LINK.findall(prose(page)) if "://" not in link]
    assert [link for link in links if link and not (page.parent / link).exists()] == []


def test_every_page_is_in_the_index() -> None:
    linked = {(DOCS / link).resolve() for link in LINK.findall((DOCS / "README.md").read_text())}
    unlisted = [page for page in DOCS.rglob("*.md") if page.parent.name != "adr" and page.resolve() not in linked]
    assert unlisted == [DOCS / "README.md"]


def test_every_decision_is_in_the_index_under_its_title() -> None:
    index = (DOCS / "adr" / "README.md").read_text()
    for record in (DOCS / "adr").glob("0*.md"):
        number, _, title = record.read_text().splitlines()[0].removeprefix("# ").partition(". ")
        assert f"| [{number}]({record.name}) | {title} |" in index


def test_every_error_and_every_alert_is_explained() -> None:
    page = (DOCS / "howto" / "troubleshooting.md").read_text()
    raised = [name for name, value in vars(errors).items() if inspect.isclass(value) and name != "ProrlError"]
    alerts = re.findall(r"- alert: (\w+)", (ROOT / "ops" / "prometheus" / "alerts.yml").read_text())
    assert len(raised) > 10
    assert len(alerts) > 10
    assert [name for name in (*raised, *alerts) if f"| `{name}` |" not in page] == []


def test_every_test_that_the_invariants_name_exists() -> None:
    """A row names a file and then tests of it; a file without tests stands for all of them."""
    rows = [row for row in (DOCS / "invariants.md").read_text().splitlines() if re.match(r"\| \d+ \|", row)]
    assert [int(row.split("|")[1]) for row in rows] == list(range(1, len(rows) + 1))
    named = [name for row in rows for name in re.findall(r"`(test_\w+)`", row)]
    defined = set(_tests())
    assert len(named) > 40
    assert [name for name in named if name not in defined] == []
    files = [file for row in rows for file in re.findall(r"`([\w/]+/test_\w+\.py)`", row)]
    assert [file for file in files if not (ROOT / "tests" / file.removeprefix("tests/")).exists()] == []


def test_every_guard_that_the_invariants_name_is_in_its_file() -> None:
    """A row names scripts, modules, and functions in them."""
    rows = [row for row in (DOCS / "invariants.md").read_text().splitlines() if re.match(r"\| \d+ \|", row)]
    guards = [row.split("|")[3] for row in rows]
    homes = (ROOT, ROOT / "prorl_mq" / "store" / "lua")
    sources = {
        name: next(((home / name).read_text() for home in homes if (home / name).exists()), None)
        for guard in guards
        for name in re.findall(r"`([\w/]+\.(?:py|lua|toml))`", guard)
    }
    assert [name for name, text in sources.items() if text is None] == []
    named = [found for guard in guards for found in re.findall(r"`([\w.]+)(?:\(\))?` in `([\w/]+\.\w+)`", guard)]
    assert len(named) > 10
    assert [each for each in named if each[0].rpartition(".")[2] not in (sources[each[1]] or "")] == []


def test_every_event_of_a_time_line_is_described() -> None:
    text = (DOCS / "reference" / "timeline.md").read_text()
    row = next(line for line in text.splitlines() if line.startswith("| changes[].event |"))
    written = set(Verb) - {Verb.RENEW, Verb.CONFIRM}  # a heartbeat writes none, and the end of a stop says how it ended
    assert set(re.findall(r"`(\w+)`", row)) == {*written, Outcome.CANCELLED, Outcome.EXPIRED, PARKED}


def test_every_guarantee_of_the_readme_names_invariants_and_tests_that_exist() -> None:
    """A row that promises something and names no test could be broken without anybody seeing it."""
    text = (ROOT / "README.md").read_text().partition("## What is guaranteed\n")[2].partition("\n## ")[0]
    rows = [row.split("|")[1:-1] for row in text.splitlines() if row.startswith("| **")]
    invariants = re.findall(r"^\| (\d+) \|", (DOCS / "invariants.md").read_text(), re.MULTILINE)
    defined = set(_tests())
    assert len(rows) > 10
    for promise, numbers, tests in rows:
        assert set(re.findall(r"\d+", numbers)) <= set(invariants), promise
        assert re.findall(r"\d+", numbers), promise
        assert re.findall(r"`(test_\w+)`", tests), promise
    assert [name for name in re.findall(r"`(test_\w+)`", text) if name not in defined] == []


def _tests() -> Iterable[str]:
    for module in (ROOT / "tests").rglob("test_*.py"):
        yield from re.findall(r"def (test_\w+)", module.read_text())
