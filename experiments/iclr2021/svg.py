"""Plain vector drawings: pieces of SVG that can be put beside each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

INK, FAINT = "#222222", "#d9d9d9"
# Colours that stay apart for most eyes (Okabe and Ito), and some more for those who need ten.
COLOURS = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#cc79a7",
    "#d55e00",
    "#56b4e9",
    "#8c6d1f",
    "#7f7f7f",
    "#6a3d9a",
    "#b2b200",
    "#1b5e20",
)


@dataclass(frozen=True)
class Picture:
    """A drawing and its size."""

    width: float
    height: float
    body: str

    def document(self) -> str:
        """Return a whole SVG file."""
        size = f'width="{self.width:g}" height="{self.height:g}" viewBox="0 0 {self.width:g} {self.height:g}"'
        ground = rectangle(0, 0, self.width, self.height, "white")
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="Helvetica, Arial, sans-serif">\n'
            f"{ground}\n{self.body}\n</svg>\n"
        )


def grid(pictures: Sequence[Picture], columns: int, gap: float = 16) -> Picture:
    """Put pictures beside and below each other; a column is as wide as its widest."""
    rows = [pictures[start : start + columns] for start in range(0, len(pictures), columns)]
    widths = [max(row[n].width for row in rows if n < len(row)) for n in range(min(columns, len(pictures)))]
    parts: list[str] = []
    y = 0.0
    for row in rows:
        for number, picture in enumerate(row):
            parts.append(moved(picture.body, sum(widths[:number]) + gap * number, y))
        y += max(picture.height for picture in row) + gap
    return Picture(sum(widths) + gap * (len(widths) - 1), y - gap, "\n".join(parts))


def titled(picture: Picture, title: str, note: str = "") -> Picture:
    """Put a title above a picture, a note under the title, and a margin around everything."""
    margin, head = 16.0, 44.0 if note else 26.0
    words = [label(margin, margin + 12, title, size=15, weight="bold")]
    if note:
        words.append(label(margin, margin + 30, note, size=11, colour="#555555"))
    body = "\n".join([*words, moved(picture.body, margin, margin + head)])
    # Nobody knows the font that a reader has: room for the widest of the usual ones.
    width = max(picture.width, 10 * len(title), 6.4 * len(note)) + 2 * margin
    return Picture(width, picture.height + head + 2 * margin, body)


def moved(body: str, x: float, y: float) -> str:
    """Shift a drawing."""
    return f'<g transform="translate({x:.1f} {y:.1f})">\n{body}\n</g>'


def label(
    x: float,
    y: float,
    words: str,
    size: float = 11,
    anchor: str = "start",
    colour: str = INK,
    weight: str = "normal",
    turned: float = 0.0,
) -> str:
    """Write words at a point; turned is in degrees."""
    turn = f' transform="rotate({turned:g} {x:.1f} {y:.1f})"' if turned else ""
    heavy = f' font-weight="{weight}"' if weight != "normal" else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" text-anchor="{anchor}" fill="{colour}"{heavy}{turn}>'
        f"{escape(words)}</text>"
    )


def rectangle(x: float, y: float, width: float, height: float, colour: str) -> str:
    """Fill a rectangle."""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'


def polyline(points: Iterable[tuple[float, float]], colour: str = INK, width: float = 1.0, dash: str = "") -> str:
    """Join points."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width:g}"{dashed}/>'


def dot(x: float, y: float, colour: str, radius: float = 3.0) -> str:
    """Mark a point."""
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{colour}"/>'
