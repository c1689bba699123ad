"""The documentation site has a page for each error and alert, and its generated pages are current."""

import re
from pathlib import Path

import pytest

from ops import reference_pages, site

ROOT = Path(__file__).parents[2]
ALERT = re.compile(r"- alert: (\w+)\n.*?runbook_url: (\S+)\n", re.DOTALL)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    site.prepare(out)
    return out / "docs"


@pytest.mark.parametrize(("name", "made"), [("cli.md", reference_pages.cli), ("http.md", reference_pages.http)])
def test_a_generated_page_is_current(name: str, made: object) -> None:
    assert callable(made)
    assert (ROOT / "docs/reference" / name).read_text() == made(), "run `make docs-reference`"


def test_each_alert_leads_to_its_page(prepared: Path) -> None:
    rules = (ROOT / "ops/prometheus/alerts.yml").read_text()
    found = dict(ALERT.findall(rules))
    assert list(found) == re.findall(r"- alert: (\w+)", rules)
    for name, path in found.items():
        page = (prepared / f"{path.rstrip('/')}.md").read_text()
        assert page.startswith(f"# {name}\n")
        assert "## What to do" in page


def test_each_error_has_a_page_that_its_row_leads_to(prepared: Path) -> None:
    text = (prepared / "howto/troubleshooting.md").read_text()
    names = [each.name for each in site.explained((ROOT / "docs/howto/troubleshooting.md").read_text())]
    assert {"OverQuota", "NotFound", "ProrlLoopLag"} <= set(names)
    assert [name for name in names if f"[`{name}`](troubleshooting/{name}.md)" not in text] == []


def test_links_of_the_site_lead_to_its_pages(prepared: Path) -> None:
    """Those that leave it become text; MkDocs checks headings as well."""
    dead = [
        f"{page.relative_to(prepared)}: {link}"
        for page in prepared.rglob("*.md")
        for part in re.split(r"^```.*?^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        for _, _, link in site.LINK.findall(part)
        if "://" not in link and link.partition("#")[0] and not (page.parent / link.partition("#")[0]).is_file()
    ]
    assert dead == []


def test_a_link_into_the_sources_becomes_text() -> None:
    page = ROOT / "docs/howto/observe.md"
    told = "[rules](../../ops/prometheus/alerts.yml), [faults](../reference/faults.md#x), [start](../../README.md)"
    assert site.linked(page, told) == "rules, [faults](../reference/faults.md#x), [start](../project/readme.md)"
    assert site.linked(page, f"```\n{told}\n```") == f"```\n{told}\n```"
