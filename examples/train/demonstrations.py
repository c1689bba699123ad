"""Scripted agents that know how to call tools and are careless about where notes lead: what is imitated first."""

import random
from collections.abc import Iterator
from typing import Any

from examples.train.trails import NOTHING, Trail, question, right_and_wrong, trail

FOLLOWS, STRAYS = 0.6, 0.25  # at a note that leads on: goes where it says, goes where it says not; else gives up
Messages = list[dict[str, Any]]


def demonstration(seed: str) -> Messages:
    """A conversation as chat templates take it. Whether it finds the gold is a matter of luck."""
    dice, on = random.Random(f"demonstration {seed}"), trail(seed)
    messages: Messages = [{"role": "user", "content": question(on)}]
    for name, arguments, result in _calls(on, dice):
        call = {"type": "function", "function": {"name": name, "arguments": arguments}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        if result is not None:
            messages.append({"role": "tool", "content": result})
    return messages


def _calls(on: Trail, dice: random.Random) -> Iterator[tuple[str, dict[str, str], str | None]]:
    """Name, arguments and what the tool says; the last one ends it."""
    here: str | None = on.start
    answer = ""
    while here is not None:
        note = on.notes[here]
        yield "execute_bash", {"command": f"cat {here}"}, note
        answer = here if note == NOTHING else note.split()[1]  # the gold, or a number at hand
        here = _next(note, dice.random())
    yield "finish", {"message": answer}, None


def _next(note: str, luck: float) -> str | None:
    """The file to read next; None: enough."""
    if note == NOTHING or note.startswith("gold"):
        return None
    right, wrong = right_and_wrong(note)
    return right if luck < FOLLOWS else wrong if luck < FOLLOWS + STRAYS else None
