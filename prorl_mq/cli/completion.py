"""`prorl-mq completion`: a script for the shell, made from the declarations of the command line.

It completes commands, options, their choices, and files elsewhere. zsh reads bash's through `bashcompinit`.
"""

import argparse
from collections.abc import Iterator, Mapping
from typing import Final

from prorl_mq.cli.arguments import COMMANDS
from prorl_mq.errors import ConfigurationError
from prorl_mq.settings import Setting, Settings, SubCommand

FAULTS = (ConfigurationError,)
# `complete` of bashcompinit needs compinit, which a bare ~/.zshrc does not call.
ZSH: Final = """whence compdef >/dev/null || {
  autoload -U compinit && compinit
}
autoload -U +X bashcompinit && bashcompinit
"""
SCRIPT: Final = """# Completion of prorl-mq. In ~/.bashrc or ~/.zshrc: source <(prorl-mq completion {shell})
{start}_prorl_mq() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} command=${{COMP_WORDS[1]}} offered
  if [ "$COMP_CWORD" -eq 1 ]; then
    offered="{commands}"
  else
    case "$command $before" in
{choices}
      *) case "$command" in
{options}
        esac ;;
    esac
  fi
  COMPREPLY=($(compgen -W "$offered" -- "$word"))
}}
complete -o default -F _prorl_mq prorl-mq
"""


async def run(given: argparse.Namespace) -> int:
    print(script(given.shell, COMMANDS), end="")
    return 0


def script(shell: str, commands: Mapping[str, SubCommand]) -> str:
    """The text that `shell` reads."""
    choices, options = list[str](), list[str]()
    for name, command in commands.items():
        each = list(flat(command.settings))
        flags = [setting.name for setting in each if setting.name.startswith("-")]
        places = [word for setting in each if not setting.name.startswith("-") for word in setting.choices]
        options.append(f'          {name}) offered="{" ".join([*places, *flags, "--help"])}" ;;')
        choices += [
            f'      "{name} {setting.name}") offered="{" ".join(setting.choices)}" ;;'
            for setting in each
            if setting.name.startswith("-") and setting.choices
        ]
    start = ZSH if shell == "zsh" else ""
    return SCRIPT.format(
        shell=shell, start=start, commands=" ".join(commands), choices="\n".join(choices), options="\n".join(options)
    )


def flat(settings: Settings) -> Iterator[Setting]:
    """The settings, those that exclude each other too."""
    for each in settings:
        yield from [each] if isinstance(each, Setting) else flat(each)
