"""Each command that a page shows is one that the command line takes."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from prorl_mq.cli.arguments import COMMANDS, JSON, parse
from prorl_mq.service.advice.bottleneck import Limit
from prorl_mq.settings import Setting
from slurm.__main__ import SUB_COMMANDS
from tests.chaos.drills import DRILLS

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


def test_the_commands_that_print_json_are_those_that_the_guide_names() -> None:
    guide = (ROOT / "docs/howto/install.md").read_text().partition("## For programs")[2].partition("print JSON")[0]
    flags = {
        name: {each.name for each in what.settings if isinstance(each, Setting)} for name, what in COMMANDS.items()
    }
    named = {name.split()[0] for name in re.findall(r"`([^`]+)`", guide)}
    assert named - {"prorl-slurm"} == {name for name, given in flags.items() if JSON.name in given}
    assert any(each.name == JSON.name for each in SUB_COMMANDS["status"].settings if isinstance(each, Setting))


def test_the_guide_explains_each_limit_and_each_alert_has_its_drill() -> None:
    guide = (ROOT / "docs/howto/observe.md").read_text()
    limits = guide.partition("| limit |")[2].partition("\n\n")[0]
    explained = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| ([^|]+) \|", limits, re.MULTILINE)))
    assert sorted(explained) == sorted(each.value for each in Limit)
    alerts = sorted(re.findall(r"- alert: (\w+)", (ROOT / "ops/prometheus/alerts.yml").read_text()))
    assert sorted(re.findall(r"`(Prorl\w+)`", guide.partition("| alert |")[2])) == alerts
    assert sorted(drill.alert for drill in DRILLS) == alerts
