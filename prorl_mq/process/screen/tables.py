"""Tables and other data as text."""

from collections.abc import Sequence
from typing import Any

import msgspec


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Columns as wide as they need to be; numbers to the right."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *texts, strict=True)]
    right = [bool(rows) and all(isinstance(row[place], int | float) for row in rows) for place in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(cells, widths, right, strict=True)
        )
        return "  ".join(padded).rstrip()

    return "\n".join(map(line, [head, *texts]))


def json_text(data: Any) -> str:
    """JSON of two spaces a level, for programs and people."""
    return msgspec.json.format(msgspec.json.encode(data), indent=2).decode()


def fitted(parts: Sequence[str], columns: int, rows: int) -> str:
    """Parts, an empty line between them, cut to a screen: the longest ones lose their last lines first."""
    lines = [part.splitlines() for part in parts]
    kept = [len(part) for part in lines]
    while sum(kept) + len(kept) - 1 > rows and max(kept) > 2:
        kept[kept.index(max(kept))] -= 1
    cut = [
        part if count == len(part) else [*part[: count - 1], f"... {len(part) - count + 1} more"]
        for part, count in zip(lines, kept, strict=True)
    ]
    text = [line for part in cut for line in (*part, "")][:-1]
    return "\n".join(line if len(line) <= columns else f"{line[: columns - 3]}..." for line in text[:rows])
