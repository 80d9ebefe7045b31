"""Draw the pictures of the pages: each text file in docs/pictures becomes an SVG file beside it.

    python docs/pictures.py

A picture has one command per line; x and y count in pixels and name the middle of a box:

    size WIDTH HEIGHT
    title TEXT                    for readers who hear the page
    box NAME KIND X Y TEXT        `|` in the text begins a new line
    note X Y TEXT                 text without a box; `|` begins a new line
    A -> B: TEXT                  an arrow; without a straight way it goes along x first, then along y
    A |> B: TEXT                  the same, along y first
    A ->left N B: TEXT            an arrow that leaves to the left (or right), runs along x = N, and returns to B
    A ..> B: TEXT                 a dashed arrow
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path

FOLDER = Path(__file__).parent / "pictures"
LINE_PX, CHARACTER_PX, PADDING_PX, HEAD_PX = 18, 8.1, 13, 7
KINDS = {
    "queue": ("#dbeafe", "#1d4ed8"),
    "wait": ("#fef3c7", "#b45309"),
    "process": ("#dcfce7", "#15803d"),
    "exchange": ("#f1f5f9", "#475569"),
    "dead": ("#fee2e2", "#b91c1c"),
    "file": ("#ede9fe", "#6d28d9"),
    "skipped": ("#ffffff", "#94a3b8"),
}
ARROW = re.compile(r"(\w+) (->|\|>|\.\.>)(?:(?:left|right) (\d+))? (\w+)(?:: (.+))?")
STYLE = (
    "text{font:14px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;fill:#0f172a;text-anchor:middle}"
    ".note{font-size:13px;fill:#334155}"
    ".arrow{fill:none;stroke:#334155;stroke-width:1.6}.dashed{stroke-dasharray:5 4}.head{fill:#334155}"
)
Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A box with its middle and its lines of text."""

    kind: str
    x: float
    y: float
    lines: list[str]

    @property
    def half_width(self) -> float:
        """Half of what the longest line needs."""
        return max(len(line) for line in self.lines) * CHARACTER_PX / 2 + PADDING_PX

    @property
    def half_height(self) -> float:
        """Half of what the lines need."""
        return len(self.lines) * LINE_PX / 2 + PADDING_PX - 3

    def edge(self, towards: Point) -> Point:
        """Where an arrow from a point straight above, below or beside the box ends."""
        x, y = towards
        if abs(x - self.x) < self.half_width:
            return x, self.y + (self.half_height if y > self.y else -self.half_height)
        return self.x + (self.half_width if x > self.x else -self.half_width), y

    def svg(self) -> str:
        """The box and its text."""
        fill, stroke = KINDS[self.kind]
        left, top = self.x - self.half_width, self.y - self.half_height
        dashed = ' stroke-dasharray="4 3"' if self.kind == "skipped" else ""
        return (
            f'<rect x="{left:g}" y="{top:g}" width="{2 * self.half_width:g}" height="{2 * self.half_height:g}" '
            f'rx="7" fill="{fill}" stroke="{stroke}"{dashed}/>' + _text(self.x, self.y, self.lines)
        )


def draw(description: str) -> str:
    """Return the SVG of a picture."""
    boxes: dict[str, Box] = {}
    parts: list[str] = []
    width, height, title = 0, 0, ""
    for line in description.splitlines():
        command, _, rest = line.partition(" ")
        if found := ARROW.fullmatch(line):
            parts.append(_arrow(boxes, found))
        elif command == "size":
            width, height = (int(number) for number in rest.split())
        elif command == "title":
            title = rest
        elif command == "box":
            name, kind, x, y, text = rest.split(" ", 4)
            boxes[name] = Box(kind=kind, x=float(x), y=float(y), lines=text.split("|"))
        elif command == "note":
            x, y, text = rest.split(" ", 2)
            parts.append(_text(float(x), float(y), text.split("|"), note=True))
        elif line:
            raise ValueError(line)
    shapes = "\n".join([*(box.svg() for box in boxes.values()), *parts])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(title)}">\n<title>{escape(title)}</title>\n<style>{STYLE}</style>\n'
        f'<rect width="{width}" height="{height}" rx="12" fill="#ffffff"/>\n{shapes}\n</svg>\n'
    )


def _arrow(boxes: dict[str, Box], found: re.Match[str]) -> str:
    source, kind, lane, target, text = found.groups()
    one, other = boxes[source], boxes[target]
    start, end = (one.x, one.y), (other.x, other.y)
    if lane:
        points = [start, (float(lane), one.y), (float(lane), other.y), end]
    elif one.y != other.y and abs(one.x - other.x) < max(one.half_width, other.half_width):
        x = min(one, other, key=lambda box: box.half_width).x
        points = [(x, one.y), (x, other.y)]
    elif one.y == other.y:
        points = [start, end]
    elif kind == "|>":
        points = [start, (one.x, other.y), end]
    else:
        points = [start, (other.x, one.y), end]
    points[0], points[-1] = one.edge(points[1]), other.edge(points[-2])
    way = " ".join(f"{x:g},{y:g}" for x, y in points)
    style = "arrow dashed" if kind == "..>" else "arrow"
    drawn = f'<polyline class="{style}" points="{way}"/>{_head(points[-2], points[-1])}'
    return drawn + (_label(points, text.split("|")) if text else "")


def _head(before: Point, end: Point) -> str:
    """A triangle that points the way of the last part."""
    (x, y), horizontal = end, before[1] == end[1]
    sign = 1 if (end[0] > before[0] if horizontal else end[1] > before[1]) else -1
    back, side = HEAD_PX * 1.4 * sign, HEAD_PX * 0.7
    corners = (
        [(x, y), (x - back, y - side), (x - back, y + side)]
        if horizontal
        else [(x, y), (x - side, y - back), (x + side, y - back)]
    )
    return f'<polygon class="head" points="{" ".join(f"{a:g},{b:g}" for a, b in corners)}"/>'


def _label(points: list[Point], lines: list[str]) -> str:
    """Above the longest horizontal part, or to the right of the longest vertical one."""
    (x1, y1), (x2, y2) = max(
        pairwise(points), key=lambda part: abs(part[0][0] - part[1][0]) + abs(part[0][1] - part[1][1])
    )
    middle_x, middle_y = (x1 + x2) / 2, (y1 + y2) / 2
    if y1 == y2:
        return _text(middle_x, middle_y - len(lines) * LINE_PX / 2 - 3, lines, note=True)
    return _text(middle_x + max(map(len, lines)) * CHARACTER_PX * 0.43 + 10, middle_y, lines, note=True)


def _text(x: float, y: float, lines: list[str], *, note: bool = False) -> str:
    style = ' class="note"' if note else ""
    top = y - (len(lines) - 1) * LINE_PX / 2 + 5
    return "".join(
        f'<text{style} x="{x:g}" y="{top + number * LINE_PX:g}">{escape(line)}</text>'
        for number, line in enumerate(lines)
    )


def main() -> None:
    """Draw all of them."""
    for source in sorted(FOLDER.glob("*.txt")):
        source.with_suffix(".svg").write_text(draw(source.read_text()))


if __name__ == "__main__":
    main()
