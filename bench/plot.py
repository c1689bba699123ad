"""Small charts as SVG, written by hand: no plotting library for three charts."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

COLOURS = ("#1b6ca8", "#2a9d4b", "#c0392b", "#8e44ad", "#d68910", "#555555")
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 720, 360, 60, 36, 170, 48
STYLE = "font-family='sans-serif' font-size='12' fill='#222'"


class Point(NamedTuple):
    """A value with the half width of its interval."""

    value: float
    margin: float


def lines(title: str, x_label: str, series: Mapping[str, Sequence[float]], *, top: float) -> str:
    """One line a series, over tenths; 1 is marked."""
    count = max(len(values) for values in series.values())

    def x(place: int) -> float:
        return LEFT + (place + 0.5) * (WIDTH - LEFT - RIGHT) / count

    parts = _frame(title, [tick / 4 for tick in range(int(top * 4) + 1) if tick % 2 == 0], 0.0, top, marked=1.0)
    for place in range(count):
        parts.append(_text(x(place), HEIGHT - BOTTOM + 18, str(place + 1), "middle"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x_label, "middle"))
    for number, (name, values) in enumerate(series.items()):
        colour = COLOURS[number]
        points = " ".join(f"{x(place):.1f},{_y(value, 0.0, top):.1f}" for place, value in enumerate(values))
        parts.append(f"<polyline points='{points}' fill='none' stroke='{colour}' stroke-width='2'/>")
        parts += _key(number, name)
    return _document(parts)


def dots(title: str, series: Mapping[str, Mapping[str, Point]], *, reach: float) -> str:
    """For each name on the horizontal axis one dot a series, with its interval; 0 is marked."""
    names = list(next(iter(series.values())))
    ticks = [reach * step / 2 for step in range(-2, 3)]
    parts = _frame(title, ticks, -reach, reach, marked=0.0)
    step = (WIDTH - LEFT - RIGHT) / len(names)
    for place, name in enumerate(names):
        parts.append(_text(LEFT + (place + 0.5) * step, HEIGHT - BOTTOM + 18, name, "middle"))
    for number, (label, points) in enumerate(series.items()):
        for place, name in enumerate(names):
            x = LEFT + (place + (number + 1) / (len(series) + 1)) * step
            value, margin = points[name]
            low, high = (_y(value + sign * margin, -reach, reach) for sign in (-1, 1))
            colour = COLOURS[number]
            parts.append(f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{low:.1f}' y2='{high:.1f}' stroke='{colour}'/>")
            parts.append(f"<circle cx='{x:.1f}' cy='{_y(value, -reach, reach):.1f}' r='4' fill='{colour}'/>")
        parts += _key(number, label)
    return _document(parts)


def bands(title: str, x_label: str, series: Mapping[str, Sequence[Point]], *, top: float) -> str:
    """One line a series over steps from 0 on, with its interval as an area where it has one."""
    last = max(len(points) for points in series.values()) - 1

    def x(step: int) -> float:
        return LEFT + step * (WIDTH - LEFT - RIGHT) / last

    parts = _frame(title, [tick * top / 5 for tick in range(6)], 0.0, top, marked=top)
    for step in range(0, last + 1, max(1, last // 10)):
        parts.append(_text(x(step), HEIGHT - BOTTOM + 18, str(step), "middle"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x_label, "middle"))
    for number, (name, points) in enumerate(series.items()):
        colour = COLOURS[number]
        edges = [(x(step), sign, point) for sign in (1, -1) for step, point in list(enumerate(points))[::sign]]
        heights = [min(top, max(0.0, point.value + sign * point.margin)) for _, sign, point in edges]
        area = " ".join(f"{at:.1f},{_y(high, 0.0, top):.1f}" for (at, *_), high in zip(edges, heights, strict=True))
        if any(point.margin for point in points):
            parts.append(f"<polygon points='{area}' fill='{colour}' fill-opacity='0.18'/>")
        line = " ".join(f"{x(step):.1f},{_y(point.value, 0.0, top):.1f}" for step, point in enumerate(points))
        parts.append(f"<polyline points='{line}' fill='none' stroke='{colour}' stroke-width='2'/>")
        parts += _key(number, name)
    return _document(parts)


def _y(value: float, low: float, high: float) -> float:
    return HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM)


def _frame(title: str, ticks: Sequence[float], low: float, high: float, *, marked: float) -> list[str]:
    parts = [_text(LEFT, 20, title, "start")]
    for tick in ticks:
        y = _y(tick, low, high)
        colour = "#888" if tick == marked else "#ddd"
        parts.append(f"<line x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{y:.1f}' y2='{y:.1f}' stroke='{colour}'/>")
        parts.append(_text(LEFT - 8, y + 4, f"{tick:g}", "end"))
    return parts


def _key(number: int, name: str) -> list[str]:
    x, y = WIDTH - RIGHT + 16, TOP + 10 + 20 * number
    return [
        f"<rect x='{x}' y='{y - 8}' width='14' height='4' fill='{COLOURS[number]}'/>",
        _text(x + 20, y, name, "start"),
    ]


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' {STYLE}>{escape(text)}</text>"


def _document(parts: Sequence[str]) -> str:
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' width='{WIDTH}' height='{HEIGHT}'>"
    return "\n".join([head, "<rect width='100%' height='100%' fill='white'/>", *parts, "</svg>", ""])
