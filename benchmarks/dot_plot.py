"""Dot plots as SVG: rows with a mark for each series, on one axis. Written out, so that equal figures give equal bytes.

Text stays text, colors follow the reader's scheme (light or dark) on a background of their own, and a series is told by its shape
as well as its color.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["DotPlot", "Panel", "Row"]

_WIDTH, _LABELS, _RIGHT = 820, 262, 28
_ROW, _TITLE, _AXIS, _LEGEND, _GAP, _MARGIN = 21, 30, 38, 34, 14, 16
_SIZE = 4.8

_LIGHT = ("#ffffff", "#1f2328", "#59636e", "#d8dee4", ("#0b69c7", "#c2410c", "#15803d", "#7e22ce"))
_DARK = ("#0d1117", "#e6edf3", "#9198a1", "#30363d", ("#58a6ff", "#fb923c", "#4ade80", "#d2a8ff"))
"""Background, text, what explains, lines, and the series."""


@dataclass(frozen=True, slots=True)
class Row:
    """Values side by side. Immutable.

    Args:
        label: What they are of.
        values: By series; what is not there has no mark.
    """

    label: str
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Panel:
    """Rows on one axis. Immutable.

    Args:
        title: Above.
        axis: Below: what is counted, and in which unit.
        ticks: Where the axis has lines; it ends at the first and the last, or at the rows' values beyond.
        rows: From above.
        logarithmic: Whether equal ratios are equal lengths.
        reference: A tick that is drawn stronger.
    """

    title: str
    axis: str
    ticks: Sequence[float]
    rows: Sequence[Row]
    logarithmic: bool = True
    reference: float | None = None

    @property
    def height(self) -> int:
        """In pixels."""
        return _TITLE + len(self.rows) * _ROW + _AXIS

    def position(self, value: float) -> float:
        """Of a value on the axis, in pixels from the left."""
        values = [value for row in self.rows for value in row.values.values()]
        low, high = min(*self.ticks, *values), max(*self.ticks, *values)
        scale = math.log if self.logarithmic else float
        share = (scale(value) - scale(low)) / (scale(high) - scale(low))
        return _LABELS + 8 + share * (_WIDTH - _LABELS - 8 - _RIGHT)


@dataclass(frozen=True, slots=True)
class DotPlot:
    """Panels below one another with the same series. Immutable.

    Args:
        summary: What is to be seen, for those who cannot see it.
        series: Their names, four at most, in the order of the legend.
        panels: From above.
        joined: Whether the marks of a row are joined by a line.
    """

    summary: str
    series: Sequence[str]
    panels: Sequence[Panel]
    joined: bool = False

    def svg(self) -> str:
        """The text of the file."""
        height = _MARGIN + _LEGEND + sum(panel.height + _GAP for panel in self.panels)
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
            f'role="img" aria-label="{escape(self.summary)}">',
            f"<style>{_style(*_LIGHT)}@media(prefers-color-scheme:dark){{{_style(*_DARK)}}}</style>",
            f'<rect class="ground" width="{_WIDTH}" height="{height}" rx="8"/>',
            *self._legend(),
        ]
        top = _MARGIN + _LEGEND
        for panel in self.panels:
            lines += self._panel(panel, top)
            top += panel.height + _GAP
        return "\n".join([*lines, "</svg>", ""])

    def _legend(self) -> list[str]:
        lines, x = [], float(_LABELS + 8)
        for number, name in enumerate(self.series):
            lines += [_mark(number, x, _MARGIN + 8.0), _text(name, x + 11, _MARGIN + 12, "label")]
            x += 34 + 6.6 * len(name)
        return lines

    def _panel(self, panel: Panel, top: int) -> list[str]:
        first, last = top + _TITLE, top + _TITLE + len(panel.rows) * _ROW
        lines = [_text(panel.title, _LABELS + 8, top + 18, "title")]
        for tick in panel.ticks:
            x = panel.position(tick)
            kind = "reference" if tick == panel.reference else "line"
            lines.append(f'<path class="{kind}" d="M{x:.1f} {first}V{last}"/>')
            lines.append(_text(f"{tick:g}", x, last + 15, "note", "middle"))
        lines.append(_text(panel.axis, _LABELS + 8, last + 32, "note"))
        for number, row in enumerate(panel.rows):
            y = first + (number + 0.5) * _ROW
            lines.append(_text(row.label, _LABELS - 6, y + 4, "label", "end"))
            found = [(index, row.values[name]) for index, name in enumerate(self.series) if name in row.values]
            places = [panel.position(value) for _, value in found]
            if self.joined and places:
                lines.append(f'<path class="join" d="M{min(places):.1f} {y:.1f}H{max(places):.1f}"/>')
            lines += [
                _mark(index, x, y, f"{row.label}, {self.series[index]}: {value:.3g}")
                for (index, value), x in zip(found, places, strict=True)
            ]
        return lines


def _style(ground: str, text: str, note: str, line: str, series: Sequence[str]) -> str:
    marks = "".join(f".s{number}{{fill:{color}}}" for number, color in enumerate(series))
    return (
        "text{font:12px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif}"
        f".ground{{fill:{ground}}}.title{{fill:{text};font-weight:600;font-size:13px}}.label{{fill:{text}}}.note{{fill:{note}}}"
        f".line{{stroke:{line}}}.reference{{stroke:{note};stroke-width:1.5}}.join{{stroke:{note};stroke-width:1.2}}"
        f".mark{{stroke:{ground};stroke-width:0.8}}{marks}"
    )


def _text(text: str, x: float, y: float, kind: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _mark(number: int, x: float, y: float, title: str = "") -> str:
    """A circle, a square, a triangle or a diamond, with its text for who points at it."""
    corners = (
        [(x + _SIZE * math.cos(t), y + _SIZE * math.sin(t)) for t in (math.tau * part / 16 for part in range(16))],
        [(x - 4.3, y - 4.3), (x + 4.3, y - 4.3), (x + 4.3, y + 4.3), (x - 4.3, y + 4.3)],
        [(x, y - 5.8), (x + 5.6, y + 4.4), (x - 5.6, y + 4.4)],
        [(x, y - 6), (x + 6, y), (x, y + 6), (x - 6, y)],
    )[number]
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in corners)
    return f'<polygon class="mark s{number}" points="{points}"><title>{escape(title)}</title></polygon>'
