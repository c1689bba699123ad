"""The state of the shell: what its own words for it say, and the words that restore it.

It is compared with what the shell was at the mark. What differs is kept, and is put right in a shell that is as that
one was; a second look at that one then tells whether it has become the same.
"""

from __future__ import annotations

import os
import re
import resource
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sandbox.server.shell import Shell

LINES = {"umask": "umask ", "shopt": "shopt ", "options": "set ", "attributes": "declare "}  # each begins so
SECTIONS = ("stands", "variables", "aliases", "completions", "functions", "traps")
WHOLE = ("dirs", "args", *LINES, *SECTIONS[2:])
VOLATILE = frozenset((
    "_", "BASH", "BASHOPTS", "BASHPID", "BASH_ALIASES", "BASH_ARGC", "BASH_ARGV", "BASH_ARGV0", "BASH_CMDS",
    "BASH_COMMAND", "BASH_LINENO", "BASH_MONOSECONDS", "BASH_REMATCH", "BASH_SOURCE", "BASH_SUBSHELL",
    "BASH_TRAPSIG", "BASH_VERSINFO", "BASH_VERSION", "COLUMNS", "COPROC", "DIRSTACK", "EPOCHREALTIME",
    "EPOCHSECONDS", "EUID", "FUNCNAME", "GROUPS", "HISTCMD", "LINENO", "LINES", "PIPESTATUS", "PPID",
    "PROMPT_COMMAND", "PS0", "PS1", "PS2", "RANDOM", "SECONDS", "SHELLOPTS", "SRANDOM", "UID", "__prorl_kept",
    "__prorl_said",
))  # fmt: skip
LIMIT_KINDS = 16  # in the kernel
DECLARED = re.compile(r"^declare -[-A-Za-z]+ ([A-Za-z_][A-Za-z0-9_]*)(?:=|$)", re.MULTILINE)
OWN_FUNCTION = re.compile(r"^__prorl_\w+ \(\) *\n\{.*?^\}\n", re.MULTILINE | re.DOTALL)
MARKED_ATTRIBUTE = re.compile(r"declare -f[a-z]")
TRAPPED = re.compile(r"^trap -- .*? (\w+)$", re.MULTILINE | re.DOTALL)
DEBUG_TRAP = re.compile(r"' DEBUG$", re.MULTILINE)  # not `trap -- - DEBUG`, which a shell in POSIX mode says of none


# `__prorl_state` says all of the shell's state but its traps, which a function does not see, with as few writes as can
# be. Its arguments are a nonce, an exit code to keep, and the shell's own arguments. With one it returns that code, in
# front of `&&`, so that no ERR trap hears of it.
STATE = (
    "__prorl_kept=$?; __prorl_state() { case $#:$- in 1:*e*) return 0;; 1:*) return $1;; esac; __prorl_kept=$2; { "
    'builtin printf \'%q\\n\' "$1" "${DIRSTACK[@]}" "$1" "${@:3}" "$1"; '
    "builtin umask -p; builtin shopt -p; builtin set +o; builtin declare -F; "
    'builtin printf \'\\n%s stands\\n%s\' "$1" "${DIRSTACK[0]-}"; '
    + " ".join(
        f"builtin printf '\\n%s {name}\\n' \"$1\"; builtin {command} -p;"
        for name, command in (("variables", "declare"), ("aliases", "alias"), ("completions", "complete"))
    )
    + " builtin printf '\\n%s functions\\n' \"$1\"; builtin declare -f; builtin printf '\\n%s traps\\n' \"$1\"; "
    "} >&0 2>/dev/null || builtin true; }; readonly -f __prorl_state; "
    '{ __prorl_state "$__prorl_kept" && \\builtin true; } >&- 2>&-\n'
)

# The shell's directory may be covered by a mount: it goes to what has that path now, and forgets that it went.
STAND = (
    "{ __prorl_kept=$?; case ${OLDPWD+is} in "
    'is) __prorl_said=$OLDPWD; \\builtin cd -- "${DIRSTACK[0]}" || \\builtin true; OLDPWD=$__prorl_said;; '
    '*) \\builtin cd -- "${DIRSTACK[0]}" || \\builtin true; \\builtin unset OLDPWD; \\builtin export OLDPWD;; esac; '
    '__prorl_state "$__prorl_kept" && \\builtin true; } >&- 2>&-\n'
)


class NoShellState(Exception):
    """The shell's state cannot be learnt or restored; the text says why."""


def look_at_shell(shell: Shell) -> dict[str, Any]:
    """The sections, each the text of the builtin that prints it. Raises `NoShellState`, and `OSError`."""
    if shell.taught != shell.pid and shell.tell(STATE, ours=True) is not None:
        shell.taught = shell.pid
    nonce = os.urandom(12).hex()
    said = shell.tell(
        f'{{ __prorl_state {nonce} "$?" "$@"; \\builtin trap -p >&0; '
        '__prorl_state "$__prorl_kept" && \\builtin true; } >&- 2>&-\n',
        ours=True,
    )
    if said is None:
        raise NoShellState("a command has not ended")
    if shell.taught != shell.pid:
        return look_at_shell(shell)  # that one had ended
    first, *parts = said.decode("utf-8", "surrogateescape").split(f"\n{nonce} ")
    found: dict[str, Any] = {name: text for name, _, text in (part.partition("\n") for part in parts)}
    places = first.split(f"{nonce}\n")
    if tuple(found) != SECTIONS or len(places) != 4:
        raise NoShellState("the shell does not say what its state is")
    if DEBUG_TRAP.search(found["traps"]):
        raise NoShellState("it has a DEBUG trap, which also what looks at it sets off")
    stack = _lines(places[1])
    if not stack:
        raise NoShellState("it has lost the name of its directory: DIRSTACK is unset")
    found["cwd"], *found["dirs"] = stack
    found["args"] = _lines(places[2])
    lines = _lines(places[3])
    found.update({name: [line for line in lines if line.startswith(start)] for name, start in LINES.items()})
    found["attributes"] = [line for line in found["attributes"] if not line.partition(" __prorl_")[1]]
    found["limits"] = _limits(shell)
    shell.stands = found.pop("stands")
    found["variables"] = _variables(found["variables"])
    found["functions"] = OWN_FUNCTION.sub("", found["functions"])
    return found


def _lines(text: str) -> list[str]:
    return [line for line in text.split("\n") if line]


def _limits(shell: Shell) -> list[list[int]]:
    """Each with its kind, the soft and the hard one."""
    assert shell.pid is not None
    return [[kind, *resource.prlimit(shell.pid, kind)] for kind in range(LIMIT_KINDS)]


def _variables(text: str) -> dict[str, str]:
    matches = list(DECLARED.finditer(text))
    ends = [match.start() for match in matches[1:]] + [len(text)]
    found = {match.group(1): text[match.start() : end] for match, end in zip(matches, ends)}
    return {name: said for name, said in found.items() if name not in VOLATILE}


def shell_difference(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """The state of a shell like the first that would make it the second. Empty: there is no difference."""
    made: dict[str, Any] = {name: now[name] for name in WHOLE if now[name] != before[name]}
    if now["cwd"] != before["cwd"]:
        made["cwd"] = now["cwd"]
    limits = [limit for limit in now["limits"] if limit not in before["limits"]]
    if limits:
        made["limits"] = limits
    was, become = before["variables"], now["variables"]
    kept = {name: text for name, text in become.items() if was.get(name) != text}
    if "cwd" in made or "dirs" in made:
        kept.update({name: become[name] for name in ("PWD", "OLDPWD") if name in become})
    unset = [name for name in was if name not in become]
    if kept:
        made["set"] = kept
    if unset:
        made["unset"] = unset
    return made


def restore_shell(shell: Shell, made: dict[str, Any]) -> None:
    """Raises `NoShellState` when the shell does not become what was saved, and `OSError`."""
    fresh = look_at_shell(shell)
    for kind, soft, hard in made.get("limits", ()):
        assert shell.pid is not None
        resource.prlimit(shell.pid, kind, (soft, hard))
    if shell.tell(_script(made, fresh), ours=False) is None:
        raise NoShellState("it has ended, or did not take it")
    now = look_at_shell(shell)
    wrong = [name for name in WHOLE if now[name] != made.get(name, fresh[name])]
    wrong += ["cwd"] if now["cwd"] != made.get("cwd", fresh["cwd"]) else []
    wrong += ["limits" for limit in made.get("limits", ()) if limit not in now["limits"]]
    kept = made.get("set", {})
    wrong += [name for name, text in kept.items() if now["variables"].get(name) != text]
    wrong += [name for name in made.get("unset", ()) if name in now["variables"]]
    if wrong:
        raise NoShellState(f"it has not taken {', '.join(wrong[:10])}")


def _script(made: dict[str, Any], fresh: dict[str, Any]) -> str:
    """Aliases come last, for they change the lines behind them; what decides how lines are read comes early."""
    lines = []
    if "cwd" in made:
        lines.append(f"builtin cd -- {made['cwd']}")
    if "dirs" in made:
        lines += ["builtin dirs -c", *(f"builtin pushd -n -- {line}" for line in reversed(made["dirs"]))]
    for name in ("umask", "shopt"):
        lines += _differing(made, fresh, name)
    lines += _variable_lines(made, fresh)
    if "functions" in made or "attributes" in made:
        lines += _function_lines(made, fresh)
    if "completions" in made:
        lines += ["builtin complete -r", made["completions"]]
    if "args" in made:
        lines.append(f"builtin set -- {' '.join(made['args'])}")
    if "traps" in made:
        lines += [*(f"builtin trap - {name}" for name in TRAPPED.findall(fresh["traps"])), made["traps"]]
    lines += _differing(made, fresh, "options")
    if "aliases" in made:
        lines += ["builtin unalias -a", made["aliases"]]
    text = "\n".join(lines)
    return "builtin eval '{}' >/dev/null 2>&1".format(text.replace("'", "'\\''"))


def _variable_lines(made: dict[str, Any], fresh: dict[str, Any]) -> list[str]:
    """A variable that is there is unset first: a declaration takes no attribute away."""
    kept = made.get("set", {})
    known = [name for name in (*made.get("unset", ()), *kept) if name in fresh["variables"]]
    return [*(f"builtin unset -n {name}; builtin unset -v {name}" for name in known), *kept.values()]


def _function_lines(made: dict[str, Any], fresh: dict[str, Any]) -> list[str]:
    return [
        *(f"builtin unset -f {line.split(' ', 2)[2]}" for line in fresh["attributes"]),
        made.get("functions", fresh["functions"]),
        *filter(MARKED_ATTRIBUTE.match, made.get("attributes", fresh["attributes"])),
    ]


def _differing(made: dict[str, Any], fresh: dict[str, Any], name: str) -> list[str]:
    """The lines that say something else."""
    return [line for line in made.get(name, ()) if line not in fresh[name]]
