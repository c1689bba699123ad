"""Trails of notes: each names the file of the next one and of a wrong one, and the last one has the gold."""

import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

LENGTHS = (1, 2, 3)  # notes that lead on, before the one with the gold
NOTHING = "nothing"  # where the wrong ones lead


class Trail(NamedTuple):
    """Two-digit numbers throughout. `notes` by the name of their file."""

    start: str
    notes: Mapping[str, str]
    way: Sequence[str]  # the files from the start to the gold
    gold: str


def trail(seed: str) -> Trail:
    """The same for the same seed."""
    dice = random.Random(seed)
    length = dice.choice(LENGTHS)
    numbers = [str(number) for number in dice.sample(range(10, 100), 2 * length + 2)]
    way, wrong, gold = numbers[: length + 1], numbers[length + 1 : -1], numbers[-1]
    notes = {way[-1]: f"gold {gold}", **dict.fromkeys(wrong, NOTHING)}
    for here, right, other in zip(way, way[1:], wrong, strict=False):
        told = [f"to {right}", f"not {other}"]
        dice.shuffle(told)
        notes[here] = " ".join(told)
    return Trail(way[0], notes, way, gold)


def question(of: Trail) -> str:
    """What the agent is asked."""
    return f"start {of.start}"


def right_and_wrong(note: str) -> tuple[str, str]:
    """Where a note says to go, and where not."""
    words = note.split()
    named = dict(zip(words[::2], words[1::2], strict=True))
    return named["to"], named["not"]
