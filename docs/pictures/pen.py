"""Draws shapes and text as SVG. The same calls always produce the same bytes.

A picture has a background of its own, so that it can be read on light and on dark pages. If the reader's system prefers
dark colours, the background is dark, too.
"""

from collections.abc import Sequence
from html import escape

# The colours of each tone: fill and line on a light page, then on a dark page.
TONES = {
    "plain": ("#f4f6f9", "#8b98a9", "#2a313c", "#7d8a9b"),
    "blue": ("#e3eefc", "#3f7fd0", "#1c3454", "#6aa5ee"),
    "green": ("#e2f4e6", "#3c9a55", "#1b3d27", "#62c07c"),
    "amber": ("#fdf1d7", "#c98a16", "#47360f", "#e3ae4a"),
    "red": ("#fce5e3", "#cf4f45", "#4b211e", "#ec837a"),
    "violet": ("#eee7fb", "#7d5bc4", "#332650", "#a98be6"),
}
# The colours of the background, of text, and of fainter text.
LIGHT, DARK = ("#ffffff", "#1c2530", "#5b6877"), ("#1b212a", "#e4e9f0", "#9aa7b6")
WIDTH_OF_A_LETTER = 0.58  # the average width of a letter of a sans-serif font, as a share of the font size


def _rules(tones: list[tuple[str, str, str]], sheet: tuple[str, str, str]) -> str:
    ground, ink, faint = sheet
    lines = [f".sheet{{fill:{ground}}}text{{fill:{ink}}}.faint,.head{{fill:{faint}}}.line{{stroke:{faint}}}"]
    for name, fill, line in tones:
        lines.append(f".{name}{{fill:{fill};stroke:{line}}}.{name}-line{{stroke:{line}}}.{name}-ink{{fill:{line}}}")
    return "".join(lines)


def _style() -> str:
    light = _rules([(name, tone[0], tone[1]) for name, tone in TONES.items()], LIGHT)
    dark = _rules([(name, tone[2], tone[3]) for name, tone in TONES.items()], DARK)
    face = "text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;font-size:13px}"
    code = ".code{font-family:ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace}"
    more = f"{code}.bold{{font-weight:600}}.line{{fill:none}}"
    return f"<style>{face}{more}{light}@media (prefers-color-scheme:dark){{{dark}}}</style>"


def width_of(text: str, size: float = 13) -> float:
    """Return the approximate width of a text, in pixels."""
    return len(text) * size * WIDTH_OF_A_LETTER


class Picture:
    """An SVG picture to which shapes and texts are added."""

    def __init__(self, width: int, height: int, title: str, description: str) -> None:
        self._size = width, height
        self._names = title, description
        self._parts: list[str] = []

    def text(self, x: float, y: float, text: str, *, look: str = "", anchor: str = "start", size: float = 13) -> None:
        """Add a text. ``look`` contains ``bold``, ``faint``, ``code``, or the name of a tone followed by ``-ink``."""
        named = f' class="{look}"' if look else ""
        sized = f' style="font-size:{size:g}px"' if size != 13 else ""
        self._parts.append(f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{named}{sized}>{escape(text)}</text>')

    def box(self, x: float, y: float, width: float, height: float, tone: str = "plain", *, round_by: float = 8) -> None:
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{round_by:g}" class="{tone}"/>'
        )

    def card(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        lines: Sequence[str],
        tone: str = "plain",
        *,
        code: bool = False,
    ) -> None:
        """Add a box with centred lines of text. The first line is bold."""
        self.box(x, y, width, height, tone)
        top = y + height / 2 - (len(lines) - 1) * 8.5 + 4.5
        for number, line in enumerate(lines):
            look, size = ("bold code" if code else "bold", 13) if number == 0 else ("faint", 11.5)
            self.text(x + width / 2, top + number * 17, line, look=look, anchor="middle", size=size)

    def arrow(self, points: Sequence[tuple[float, float]], *, tone: str = "", dashed: bool = False) -> None:
        """Add an arrow through the points. Its head is at the last point."""
        way = "M" + "L".join(f"{x:g},{y:g}" for x, y in points)
        look = f"line {tone}-line" if tone else "line"
        dashes = ' stroke-dasharray="5 4"' if dashed else ""
        self._parts.append(f'<path d="{way}" class="{look}" stroke-width="1.6"{dashes}/>')
        (x0, y0), (x, y) = points[-2:]
        length = ((x - x0) ** 2 + (y - y0) ** 2) ** 0.5
        ux, uy = (x - x0) / length, (y - y0) / length
        head = [(x, y), (x - 9 * ux - 4.5 * uy, y - 9 * uy + 4.5 * ux), (x - 9 * ux + 4.5 * uy, y - 9 * uy - 4.5 * ux)]
        corners = " ".join(f"{a:.1f},{b:.1f}" for a, b in head)
        self._parts.append(f'<polygon points="{corners}" class="{tone + "-ink" if tone else "head"}"/>')

    def line(self, points: Sequence[tuple[float, float]], *, tone: str = "", width: float = 1.2) -> None:
        way = " ".join(f"{x:g},{y:g}" for x, y in points)
        look = f"line {tone}-line" if tone else "line"
        self._parts.append(f'<polyline points="{way}" class="{look}" stroke-width="{width:g}"/>')

    def dot(self, x: float, y: float, tone: str, radius: float = 3.5) -> None:
        self._parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" class="{tone}-ink"/>')

    def svg(self) -> str:
        """Return the content of the SVG file."""
        width, height = self._size
        title, description = map(escape, self._names)
        opening = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
            f' role="img"><title>{title}</title><desc>{description}</desc>'
        )
        sheet = f'<rect width="{width}" height="{height}" rx="10" class="sheet"/>'
        return "\n".join([opening, _style(), sheet, *self._parts, "</svg>\n"])
