"""Reads a completion: reasoning, text and tool calls, from its ids.

What is read here decides which tools run; it never returns to the history, which stays as it was sampled. Markers
that the vocabulary knows as single ids are found by id, so that text which merely spells one is text; those that it
does not know are searched as text.
"""

import re
from collections.abc import Callable, Mapping, Sequence

import msgspec

from workers.agent.calls import Call, CallFormat, Piece

THINK, END_THINK = "<think>", "</think>"


class Parsed(msgspec.Struct, frozen=True, kw_only=True):
    """A completion as the loop needs it."""

    text: str
    reasoning: str
    calls: Sequence[Call]


def split_ids(ids: Sequence[int], markers: Mapping[int, str], decode: Callable[[Sequence[int]], str]) -> list[Piece]:
    """Cuts at the ids of markers."""
    pieces: list[Piece] = []
    start = 0
    for place in [place for place, token in enumerate(ids) if token in markers]:
        pieces += [(False, decode(ids[start:place])), (True, markers[ids[place]])]
        start = place + 1
    return [*pieces, (False, decode(ids[start:]))]


def split_text(text: str, markers: Sequence[str]) -> list[Piece]:
    """Cuts at the text of markers, for those that have no id."""
    if not markers:
        return [(False, text)]
    pieces: list[Piece] = []
    start = 0
    for match in re.finditer("|".join(map(re.escape, markers)), text):
        pieces += [(False, text[start : match.start()]), (True, match.group())]
        start = match.end()
    return [*pieces, (False, text[start:])]


def parse(
    pieces: Sequence[Piece], calls: CallFormat, *, opened: bool = False, think: tuple[str, str] = (THINK, END_THINK)
) -> Parsed:
    """Sorts pieces. `opened`: the prompt ends inside the reasoning, which stands between the markers of `think`."""
    reasoning, rest = _part(pieces, calls.markers[0], opened, think)
    text, found = calls.read(rest)
    return Parsed(text=text, reasoning=reasoning.strip(), calls=found)


def _part(pieces: Sequence[Piece], call: str, opened: bool, think: tuple[str, str]) -> tuple[str, list[Piece]]:
    """The thought, and the rest. A call in closed reasoning is a thought; one in reasoning left open ends it."""
    opening, closing = think
    thinks = [piece for is_marker, piece in pieces if is_marker and piece in think]
    closings = thinks.count(closing)
    inside = opened or thinks[:1] == [closing]
    thoughts: list[str] = []
    rest: list[Piece] = []
    for is_marker, piece in pieces:
        marker = piece if is_marker else None
        if marker == closing:
            inside, closings = False, closings - 1
        elif marker == opening:
            inside = True
        elif inside and not (marker == call and closings == 0):
            thoughts.append(piece)
        else:
            inside = False
            rest.append((is_marker, piece))
    return "".join(thoughts), rest
