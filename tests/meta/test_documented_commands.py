"""Each command that a page shows is one that the command line takes."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from prorl_mq.cli.arguments import parse

ROOT = Path(__file__).parents[2]
COMMAND = re.compile(r"(?:[A-Z_]+=\S+ )*prorl-mq (.+)")


def shown(text: str) -> Iterator[list[str]]:
    """The words behind `prorl-mq` in the blocks of a page."""
    for block in text.split("```")[1::2]:
        for line in block.replace("\\\n", " ").splitlines():
            found = COMMAND.match(line.strip())
            if found and "…" not in line:
                yield shlex.split(re.split(r"\s#\s| && | \| | &$", found[1])[0])


def refused(words: list[str]) -> bool:
    try:
        parse(words)
    except SystemExit as ended:
        return bool(ended.code)
    return False


def test_the_command_line_takes_what_pages_show() -> None:
    commands = [words for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")] for words in shown(page.read_text())]
    assert len(commands) > 30
    assert [shlex.join(words) for words in commands if refused(words)] == []
