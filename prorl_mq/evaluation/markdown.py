"""Writes a report as Markdown. Texts that came with data are shown as they are: no mark-up of theirs has an effect."""

import re
from collections.abc import Sequence
from typing import Final, assert_never

from prorl_mq.evaluation.blocks import Anchor, Block, Chart, Command, Heading, Paragraph, Table
from prorl_mq.process.screen.terminal import one_line

_MARKS: Final = re.compile(r"([\\`*_\[\]|~$]|^[#+>-]|(?<!\w)@|:(?=//)|(?<=www)\.)")  # the last two would become links
_HTML: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


def markdown(blocks: Sequence[Block]) -> str:
    """The text of a report."""
    return "\n\n".join(_block(each) for each in blocks) + "\n"


def plain(text: str) -> str:
    """The text on one line, with every mark of Markdown and HTML taken as a character."""
    return _MARKS.sub(r"\\\1", one_line(text)).translate(_HTML)


def _block(block: Block) -> str:
    match block:
        case Heading():
            return f"{'#' * block.level} {plain(block.text)}"
        case Paragraph():
            return plain(block.text)
        case Command():
            return f"    {one_line(block.text)}"
        case Table():
            return _table(block)
        case Chart():
            rows = [(bar.label, f"{bar.value:.3f}", _interval(bar.low, bar.high)) for bar in block.bars]
            return _table(Table((block.title, "value", "95 % interval"), rows))
        case _:
            assert_never(block)


def _table(table: Table) -> str:
    rule = ["---" if place < table.left else "--:" for place in range(len(table.head))]
    lines = [[plain(name) for name in table.head], rule, *([_cell(cell) for cell in row] for row in table.rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(cell: str | Anchor) -> str:
    return f"[{plain(cell.text)}]({cell.target})" if isinstance(cell, Anchor) else plain(cell)


def _interval(low: float | None, high: float | None) -> str:
    return "–" if low is None or high is None else f"{low:.3f} to {high:.3f}"
