"""Charts: curves, bars and matrices, as plain vector drawings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments.iclr2021.svg import COLOURS, FAINT, INK, Picture, dot, label, moved, polyline, rectangle

SHADES = 25  # an odd number: the one in the middle is for zero
VIRIDIS = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
LEFT, BELOW, ABOVE = 48.0, 38.0, 22.0  # room for ticks and words around a chart


@dataclass(frozen=True)
class Curve:
    """One line of a chart; a point without a value is left out."""

    name: str
    points: Sequence[tuple[float, float | None]]
    colour: str
    dash: str = ""
    is_dotted: bool = False  # marks its points
    spreads: Sequence[float] = ()  # how far each point may be off


@dataclass(frozen=True)
class Bar:
    """One bar, how far it may be off, and what the paper has in its place."""

    name: str
    value: float | None
    spread: float = 0.0
    paper: float | None = None


def curves(
    lines: Sequence[Curve],
    title: str,
    x_words: str,
    y_words: str,
    size: tuple[float, float] = (260, 170),
    with_names: bool = True,
) -> Picture:
    """Draw lines over a common axis, with their names at the right."""
    known = [(x, y) for line in lines for x, y in line.points if y is not None and math.isfinite(y)]
    most = max((spread for line in lines for spread in line.spreads), default=0.0)
    x_ticks, y_ticks = ticks([x for x, _ in known]), ticks([y + reach for _, y in known for reach in (-most, most)])
    width, height = size

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - x_ticks[0]) / (x_ticks[-1] - x_ticks[0])
        up = (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])
        return LEFT + width * across, ABOVE + height * (1 - up)

    parts = [_frame(title, x_words, y_words, size)]
    for tick in y_ticks:
        y = place(x_ticks[0], tick)[1]
        parts += [polyline([(LEFT, y), (LEFT + width, y)], FAINT), label(LEFT - 6, y + 4, f"{tick:g}", 10, "end")]
    for tick in x_ticks:
        parts.append(label(place(tick, y_ticks[0])[0], ABOVE + height + 14, f"{tick:g}", 10, "middle"))
    for line in lines:
        points = [place(x, y) for x, y in line.points if y is not None and math.isfinite(y)]
        parts.append(polyline(points, line.colour, 1.6, line.dash))
        if line.is_dotted:
            parts += [dot(x, y, line.colour) for x, y in points]
        for (x, y), spread in zip(line.points, line.spreads, strict=bool(line.spreads)):
            if y is not None and spread:
                parts.append(polyline([place(x, y - spread), place(x, y + spread)], line.colour))
    room = 0.0
    if with_names:
        room = 30 + 6.2 * max(len(line.name) for line in lines)
        parts.append(moved(legend([(line.name, line.colour, line.dash) for line in lines]), LEFT + width + 10, ABOVE))
    room = max(room, 6.8 * len(title) - width)
    return Picture(LEFT + width + room + 8, ABOVE + height + BELOW, "\n".join(parts))


def bars(groups: Mapping[str, Sequence[Bar]], title: str, y_words: str, bar_width: float = 15) -> Picture:
    """Draw groups of bars; a short line across a bar is the paper's number, an empty place a missing one."""
    everything = [bar for group in groups.values() for bar in group]
    tops = [bar.value + bar.spread for bar in everything if bar.value is not None]
    y_ticks = ticks([0.0, *tops, *(bar.paper for bar in everything if bar.paper is not None)])
    names = list(dict.fromkeys(bar.name for bar in everything))
    height, gap = 190.0, 18.0
    width = sum(len(group) * bar_width + gap for group in groups.values())

    def up(value: float) -> float:
        return ABOVE + height * (1 - value / y_ticks[-1])

    parts = [_frame(title, "", y_words, (width, height))]
    for tick in y_ticks:
        parts.append(polyline([(LEFT, up(tick)), (LEFT + width, up(tick))], FAINT))
        parts.append(label(LEFT - 6, up(tick) + 4, f"{tick:g}", 10, "end"))
    x = LEFT + gap / 2
    for name, group in groups.items():
        parts.append(label(x + len(group) * bar_width / 2, ABOVE + height + 16, name, 11, "middle"))
        for bar in group:
            middle = x + bar_width / 2
            if bar.value is not None:
                colour = COLOURS[names.index(bar.name) % len(COLOURS)]
                parts.append(rectangle(x + 1, up(bar.value), bar_width - 2, ABOVE + height - up(bar.value), colour))
                ends = [(middle, up(bar.value - bar.spread)), (middle, up(bar.value + bar.spread))]
                parts += [polyline(ends, INK, 1.2)] if bar.spread else []
            if bar.paper is not None:
                parts.append(polyline([(x + 1, up(bar.paper)), (x + bar_width - 1, up(bar.paper))], INK, 2))
            x += bar_width
        x += gap
    entries = [(name, COLOURS[number % len(COLOURS)], "") for number, name in enumerate(names)]
    if any(bar.paper is not None for bar in everything):
        entries.append(("the paper", INK, ""))
    parts.append(moved(legend(entries), LEFT + width + 10, ABOVE))
    room = 30 + 6.2 * max(len(name) for name, _, _ in entries)
    return Picture(LEFT + width + room, ABOVE + max(height + BELOW, 16.0 * len(entries)), "\n".join(parts))


def matrix(rows: Sequence[Sequence[float]], title: str, groups: Sequence[int] | None, side: float = 150) -> Picture:
    """Draw a matrix: light above zero, dark below, each row by its own extremes, grey at zero; no diagonal."""
    size = len(rows)
    paths: dict[str, list[str]] = {}
    for receiver, row in enumerate(rows):
        others = [value for giver, value in enumerate(row) if giver != receiver]
        least, greatest = min(0.0, *others), max(0.0, *others)
        for giver, value in enumerate(row):
            if giver != receiver:
                height = value / greatest if value > 0 else -value / least if value < 0 else 0.0
                colour = colour_of(round((1 + height) / 2 * (SHADES - 1))) if value else FAINT
                paths.setdefault(colour, []).append(f"M{giver} {receiver}h1v1h-1z")
    drawn = "\n".join(f'<path fill="{colour}" d="{"".join(path)}"/>' for colour, path in sorted(paths.items()))
    scale = (
        f'<g transform="translate(0 {ABOVE:g}) scale({side / size:.4f})" shape-rendering="crispEdges">\n{drawn}\n</g>'
    )
    parts = [label(0, ABOVE - 8, title, 11), scale]
    if groups is not None:
        cuts = [n * side / size for n in range(1, size) if groups[n] != groups[n - 1]]
        parts += [polyline([(cut, ABOVE), (cut, ABOVE + side)], "white", 0.8) for cut in cuts]
        parts += [polyline([(0, ABOVE + cut), (side, ABOVE + cut)], "white", 0.8) for cut in cuts]
    return Picture(max(side, 6.0 * len(title)), ABOVE + side, "\n".join(parts))


def key(names: Sequence[str], words: str) -> Picture:
    """Say in a line which colour stands for what."""
    parts = [label(LEFT, 12, words, 11)]
    x = LEFT + 6.2 * len(words) + 10
    for name, colour in zip(names, COLOURS, strict=False):
        parts += [polyline([(x, 8), (x + 16, 8)], colour, 3), label(x + 20, 12, name, 11)]
        x += 40 + 6.2 * len(name)
    return Picture(x, 18, "\n".join(parts))


def legend(entries: Sequence[tuple[str, str, str]]) -> str:
    """Name colours and dashes, one below the other."""
    parts: list[str] = []
    for number, (name, colour, dash) in enumerate(entries):
        y = 6 + 16 * number
        parts += [polyline([(0, y), (16, y)], colour, 3, dash), label(22, y + 4, name, 11)]
    return "\n".join(parts)


def ticks(values: Sequence[float], most: int = 6) -> list[float]:
    """Return round numbers from below the least value to above the greatest."""
    if not values:
        return [0.0, 1.0]
    low, high = min(values), max(values)
    if high == low:
        low, high = low - 0.5, high + 0.5
    rough = (high - low) / (most - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(n * step, 10) for n in range(first, last + 1)]


def colour_of(shade: int) -> str:
    """Return a colour from dark to light."""
    position = shade / (SHADES - 1) * (len(VIRIDIS) - 1)
    below = min(int(position), len(VIRIDIS) - 2)
    mixed = (round(a + (position - below) * (b - a)) for a, b in zip(VIRIDIS[below], VIRIDIS[below + 1], strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)


def _frame(title: str, x_words: str, y_words: str, size: tuple[float, float]) -> str:
    width, height = size
    middle = ABOVE + height / 2
    return "\n".join(
        [
            label(LEFT, ABOVE - 8, title, 12, weight="bold"),
            label(LEFT + width / 2, ABOVE + height + 30, x_words, 11, "middle"),
            label(12, middle, y_words, 11, "middle", turned=-90),
            polyline([(LEFT, ABOVE), (LEFT, ABOVE + height), (LEFT + width, ABOVE + height)], INK),
        ]
    )
