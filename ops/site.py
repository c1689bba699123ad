# ruff: noqa: INP001  (a program, not a module)
"""Prepares the documentation for MkDocs: docs/, the pages at the root, and a page for each error and alert.

python -m ops.site DIR      # writes DIR/mkdocs.yml and DIR/docs; `make docs` builds DIR/site from them

Links to files that are no page become plain text: a site has no sources. What is left must lead somewhere, or the
build fails.
"""

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
DOCS: Final = ROOT / "docs"
BESIDE: Final = {
    ROOT / "README.md": "project/readme.md",
    ROOT / "CONTRIBUTING.md": "project/contributing.md",
    ROOT / "SECURITY.md": "project/security.md",
    ROOT / "CHANGELOG.md": "project/changelog.md",
    ROOT / "bench" / "README.md": "project/benchmarks.md",
}
EXPLAINED: Final = "howto/troubleshooting.md"
LINK: Final = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
ROW: Final = re.compile(r"^\| `(\w+)`([^|]*)\| (.+) \|$", re.MULTILINE)
HEAD: Final = re.compile(r"^\| (.+) \|\n\|[-|]+\|$", re.MULTILINE)
CONFIGURATION: Final = """site_name: prorl_mq
site_description: Rollout-as-a-service for reinforcement learning of multi-turn LLM agents
docs_dir: docs
site_dir: site
use_directory_urls: true
theme:
  name: material
  font: false
  features: [navigation.indexes, navigation.top, search.highlight, content.code.copy]
plugins: [search]
validation:
  omitted_files: ignore
  absolute_links: warn
  unrecognized_links: warn
  anchors: warn
markdown_extensions:
  - tables
  - admonition
  - toc: {permalink: true}
  - pymdownx.superfences:
      custom_fences:
        - name: mermaid
          class: mermaid
          format: !!python/name:pymdownx.superfences.fence_code_format
"""


class Explained(NamedTuple):
    """One row of a table of troubleshooting."""

    name: str
    cells: tuple[tuple[str, str], ...]  # head and text


def prepare(out: Path) -> None:
    """Writes the sources of the site, in place of those of an earlier call."""
    shutil.rmtree(out / "docs", ignore_errors=True)
    for source in sorted([*DOCS.rglob("*"), *BESIDE]):
        target = out / "docs" / _place(source)
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.suffix == ".md":
                target.write_text(linked(source, source.read_text()))
            else:
                shutil.copyfile(source, target)
    page = out / "docs" / EXPLAINED
    text = page.read_text()
    folder = page.parent / "troubleshooting"
    folder.mkdir()
    for each in explained(text):
        (folder / f"{each.name}.md").write_text(page_of(each))
        text = text.replace(f"\n| `{each.name}`", f"\n| [`{each.name}`](troubleshooting/{each.name}.md)", 1)
    page.write_text(text)
    (out / "mkdocs.yml").write_text(CONFIGURATION)


def linked(page: Path, text: str) -> str:
    """The text with links as the site has them, but for those within blocks of code."""
    parts = re.split(r"(^```.*?^```)", text, flags=re.DOTALL | re.MULTILINE)
    return "".join(
        part if part.startswith("```") else LINK.sub(lambda found: _link(page, found), part) for part in parts
    )


def explained(text: str) -> Iterator[Explained]:
    """The rows that explain an error or an alert."""
    for head in HEAD.finditer(text):
        names = head[1].split(" | ")
        if names[0] not in {"error", "alert"}:
            continue
        for row in text[head.end() :].lstrip("\n").split("\n\n")[0].splitlines():
            if found := ROW.match(row):
                yield Explained(found[1], tuple(zip(names[1:], found[3].split(" | "), strict=True)))


def page_of(each: Explained) -> str:
    """The page of one error or alert; its links lead from one folder further down."""
    parts = [f"# {each.name}"]
    for head, cell in each.cells:
        text = LINK.sub(lambda found: f"{found[1]}[{found[2]}]({_down(found[3])})", cell)
        parts.append(f"## {head[0].upper()}{head[1:]}\n\n{text[0].upper()}{text[1:]}")
    return "\n\n".join([*parts, "[All errors and alerts](../troubleshooting.md)"]) + "\n"


def _down(link: str) -> str:
    return link if "://" in link else f"../troubleshooting.md{link}" if link.startswith("#") else f"../{link}"


def _place(source: Path) -> str:
    return BESIDE.get(source) or source.relative_to(DOCS).as_posix()


def _link(page: Path, found: "re.Match[str]") -> str:
    picture, text, link = found.groups()
    path, hash_, anchor = link.partition("#")
    if "://" in link or not path:
        return found[0]
    target = (page.parent / path).resolve()
    if target not in BESIDE and not (target.is_file() and target.is_relative_to(DOCS)):
        return str(text)
    place = os.path.relpath(_place(target), Path(_place(page)).parent)
    return f"{picture}[{text}]({place}{hash_}{anchor})"


if __name__ == "__main__":
    prepare(Path(sys.argv[1]))
