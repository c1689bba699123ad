"""Parts of a completion between an opening and a closing marker."""

from collections.abc import Sequence

from workers.agent.calls import Piece


def sections(pieces: Sequence[Piece], opening: str, closing: str) -> tuple[str, list[str]]:
    """The text outside of such parts, and the text of each. One that is never closed ends with the completion."""
    outside: list[str] = []
    found: list[list[str]] = []
    inside = False
    for is_marker, piece in pieces:
        if is_marker and piece == opening:
            inside = True
            found.append([])
        elif is_marker and piece == closing:
            inside = False
        else:
            (found[-1] if inside else outside).append(piece)
    return "".join(outside).strip(), ["".join(each) for each in found]
