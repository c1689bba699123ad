"""The newest calls of a history, as a person reads them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from prorl_mq.store import scripts

Command = tuple[Any, ...]


class Step(NamedTuple):
    """One executed call, for the trace."""

    now_us: int
    who: str
    commands: Sequence[Command]
    replies: Sequence[Any]


def shown(step: Step) -> str:
    """`EVALSHA` by its script's name, with its packed argument unpacked."""
    parts = []
    for command, reply in zip(step.commands, step.replies, strict=True):
        shown = " ".join(str(part) for part in command)
        if command[0] in {"EVALSHA", "EVAL"}:
            keys, *arguments = command[3 : 3 + command[2]], *command[3 + command[2] :]
            about = msgspec.msgpack.decode(arguments[0]) if arguments and isinstance(arguments[0], bytes) else {}
            items = about.get("items", about) if isinstance(about, dict) else about
            shown = f"{seen_as(command[1])} {items} on {keys[-4:]}"
        parts.append(f"{shown[:400]} -> {str(reply)[:200]}")
    return f"{step.now_us / 1e6:10.6f} {step.who:24} {' | '.join(parts)}"


def seen_as(sha: str) -> str:
    """The name of a script by its hash or its text."""
    for name in scripts.names():
        made = scripts.script(name)
        if sha in {made.sha, made.text}:
            return name
    return sha[:8]
