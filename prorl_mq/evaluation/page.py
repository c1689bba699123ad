"""Writes a report as one page of HTML: no script, no request, and nothing but text from data.

Its own policy forbids everything but its one style sheet, which it names by its digest.
"""

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from typing import Final, assert_never

from prorl_mq.evaluation.blocks import Anchor, Bar, Block, Chart, Command, Heading, Paragraph, Table
from prorl_mq.process.screen.terminal import one_line

STYLE: Final = """
:root { color-scheme: light dark; --ink: light-dark(#1b1f24, #e6e8eb); --line: light-dark(#d5dae0, #3a4048);
  --mark: light-dark(#1f5fbf, #7fb0ff); --paper: light-dark(#ffffff, #15181c); }
body { margin: 0 auto; padding: 1rem; max-width: 60rem; font: 16px/1.5 system-ui, sans-serif; color: var(--ink);
  background: var(--paper); overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .6rem .3rem 0; text-align: right; vertical-align: top;
  overflow-wrap: normal; }
th { white-space: nowrap; } .word { text-align: left; min-width: 6rem; max-width: 24rem; overflow-wrap: anywhere; }
a { color: var(--mark); } pre { border: 1px solid var(--line); padding: .5rem; overflow-x: auto; }
svg { width: 100%; max-width: 40rem; height: auto; } svg text { fill: var(--ink); font-size: 12px; }
.axis { stroke: var(--line); } .range { stroke: var(--mark); stroke-width: 2; } .dot { fill: var(--mark); }
"""
WIDTH: Final = 340
SIDE: Final = 8  # left and right of the scale
ROW: Final = 36


def html(title: str, blocks: Sequence[Block]) -> str:
    """The text of a page."""
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="referrer" content="no-referrer">',
            f"<title>{plain(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>",
            *map(_block, blocks),
            "</main>\n</body>\n</html>\n",
        ]
    )


def plain(text: str) -> str:
    """The text with everything that HTML reads as mark-up taken as characters."""
    return escape(one_line(text), quote=True)


def _block(block: Block) -> str:
    match block:
        case Heading():
            return f"<h{block.level}>{plain(block.text)}</h{block.level}>"
        case Paragraph():
            return f"<p>{plain(block.text)}</p>"
        case Command():
            return f"<pre>{plain(block.text)}</pre>"
        case Table():
            return _table(block)
        case Chart():
            return _chart(block)
        case _:
            assert_never(block)


def _table(table: Table) -> str:
    def line(cells: Sequence[str | Anchor], tag: str) -> str:
        words = [' class="word"' if place < table.left else "" for place in range(len(cells))]
        return "".join(f"<{tag}{word}>{_cell(cell)}</{tag}>" for word, cell in zip(words, cells, strict=True))

    rows = "".join(f"<tr>{line(row, 'td')}</tr>\n" for row in table.rows)
    head = f"<thead><tr>{line(table.head, 'th')}</tr></thead>"
    return f'<div class="wide"><table>\n{head}\n<tbody>\n{rows}</tbody></table></div>'


def _cell(cell: str | Anchor) -> str:
    return f'<a href="{plain(cell.target)}">{plain(cell.text)}</a>' if isinstance(cell, Anchor) else plain(cell)


def _chart(chart: Chart) -> str:
    """Each value as a dot on the line of its interval, below its label."""
    height = ROW * len(chart.bars) + 20
    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{plain(chart.title)}">']
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        value = chart.start + share * (chart.end - chart.start)
        x = _x(chart, value)
        anchor = "start" if share == 0 else "end" if share == 1 else "middle"
        parts.append(f'<line class="axis" x1="{x}" x2="{x}" y1="0" y2="{height - 18}"/>')
        parts.append(f'<text x="{x}" y="{height - 4}" text-anchor="{anchor}">{value:.2f}</text>')
    parts += [_bar(chart, bar, ROW * place) for place, bar in enumerate(chart.bars)]
    return "\n".join([*parts, "</svg>"])


def _bar(chart: Chart, bar: Bar, top: int) -> str:
    y, label = top + 26, plain(f"{bar.label[:40]}: {bar.value:.3f}")
    parts = [f'<text x="{SIDE}" y="{top + 14}">{label}</text>']
    if bar.low is not None and bar.high is not None:
        low, high = _x(chart, bar.low), _x(chart, bar.high)
        parts.append(f'<line class="range" x1="{low}" x2="{high}" y1="{y}" y2="{y}"/>')
    parts.append(f'<circle class="dot" cx="{_x(chart, bar.value)}" cy="{y}" r="4"/>')
    return "\n".join(parts)


def _x(chart: Chart, value: float) -> float:
    share = (value - chart.start) / (chart.end - chart.start)
    return round(SIDE + min(max(share, 0.0), 1.0) * (WIDTH - 2 * SIDE), 1)
