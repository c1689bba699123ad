"""A shell completes what the command line takes."""

import subprocess

import pytest

from prorl_mq.cli.arguments import COMMANDS
from prorl_mq.cli.completion import script

CASES = {
    "": sorted(COMMANDS),
    "sub": ["submit"],
    "cancel ": ["--help", "--token", "--url", "batch", "group", "job", "run"],
    "up --redis-server ": ["embedded", "installed"],
    "export --form": ["--format"],
}


@pytest.mark.process
@pytest.mark.parametrize("line", CASES)
def test_bash_offers_commands_options_and_choices(line: str) -> None:
    words = ["prorl-mq", *line.split(" ")]
    quoted = " ".join(f"'{word}'" for word in words)
    asked = f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _prorl_mq; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(
        ["bash", "-uc", f"{script('bash', COMMANDS)}\n{asked}"], capture_output=True, text=True, check=True
    )
    assert sorted(done.stdout.split()) == CASES[line]


def test_zsh_loads_what_reads_scripts_of_bash() -> None:
    lines = script("zsh", COMMANDS).splitlines()
    assert lines.index("  autoload -U compinit && compinit") < lines.index(
        "autoload -U +X bashcompinit && bashcompinit"
    )
