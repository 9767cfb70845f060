"""Page without scripts: a title, a verdict and sections.

The content security policy forbids scripts and external resources.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from string import Template

from allocsim.metrics import Outline
from allocsim.report.html.markup import legend, page_part, text
from allocsim.report.layout import number
from allocsim.units import format_size

__all__ = ["Scale", "scale_of", "static_page"]

_SERIES = ("reserved", "allocated")


def static_page(title: str, verdict: Iterable[str], sections: Iterable[tuple[str, str]]) -> str:
    """Return a page without scripts.

    verdict: sentences at the top.
    sections: pairs of heading and HTML.
    """
    return Template(page_part("static.html")).substitute(
        title=text(title),
        verdict="".join(f'<p class="verdict">{text(line)}</p>\n' for line in verdict),
        sections="".join(
            f"<section>\n<h2>{text(name)}</h2>\n{content}</section>\n" for name, content in sections
        ),
        style=page_part("page.css"),
    )


@dataclass(frozen=True, slots=True)
class Scale:
    """Common scale of all curves of a page: from 0 to `top` bytes, and over `entries` entries."""

    top: int
    entries: int

    def note(self, what: str) -> str:
        """Return a legend, and a sentence on the scale; `what` is its first word, e.g. "Both"."""
        size, entries = format_size(self.top), number(self.entries)
        note = f"{what} from 0 to {size} upwards and over {entries} entries."
        shown = legend((name, f"--{name}") for name in _SERIES)
        return f'{shown}<p class="note">{text(note)}</p>\n'

    def curve(self, outline: Outline, size: tuple[int, int]) -> str:
        """Return an SVG of reserved and allocated memory; `size` is width and height in pixels."""
        width, height = size
        wide = width * outline.entries / max(self.entries, 1)
        lines = "".join(
            _line(getattr(outline, name), self.top, wide, height, f"--{name}") for name in _SERIES
        )
        return (
            f'<svg class="outline" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" aria-hidden="true">{lines}</svg>'
        )


def scale_of(outlines: Sequence[Outline]) -> Scale:
    """Return the scale that fits the highest and the longest of the curves."""
    top = max(max(outline.reserved) for outline in outlines)
    return Scale(top, max(outline.entries for outline in outlines))


def _line(values: Sequence[int], top: int, wide: float, height: int, paint: str) -> str:
    x, y = wide / len(values), (height - 2) / max(top, 1)
    at = [height - 1 - value * y for value in values]
    points = " ".join(
        f"{i * x:.1f},{here:.1f} {(i + 1) * x:.1f},{here:.1f}" for i, here in enumerate(at)
    )
    return f'<polyline points="{points}" fill="none" stroke="var({paint})"/>'
