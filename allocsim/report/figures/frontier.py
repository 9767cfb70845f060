"""Chart of the largest size that fits, e.g. the batch, for several values of another size.

Each point was computed.  The next larger value was computed too, and does not fit.  Nothing is
interpolated between points.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from allocsim.fitting import ReadFront
from allocsim.report.figures.canvas import caption, new_figure, styled, whole_numbers
from allocsim.report.figures.theme import LIGHT
from allocsim.report.layout import number, printable
from allocsim.units import format_size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from allocsim.report.figures.theme import Theme

__all__ = ["frontier_figure"]


def frontier_figure(front: ReadFront, theme: Theme = LIGHT) -> Figure:
    """Draw a point for each value of the second size, e.g. the sequence length."""
    figure, (axes,) = new_figure(theme)
    values = [value for value, _, _ in front.points]
    largest = [value for _, value, _ in front.points]
    axes.plot(values, largest, color=theme.faint, lw=1, zorder=2)
    axes.plot(values, largest, "o", color=theme.allocated, zorder=3)
    for value, most, peak in front.points:
        text = f"{number(most)}: {format_size(peak)}" if most else "none"
        axes.annotate(text, (value, most), (6, 6), textcoords="offset points", color=theme.ink)
    axes.set_xscale("log", base=2)
    axes.set_xticks(values, list(map(number, values)))
    axes.set_xticks([], minor=True)
    axes.set_xlim(min(values) / 1.3, max(values) * 1.6)
    axes.set_ylim(0, max(largest) * 1.2 + 1)
    styled(axes, theme, printable(front.other), f"largest {printable(front.name)}")
    whole_numbers(axes.yaxis)
    title = f"the largest {printable(front.name)} that fits {printable(front.gpu)}"
    caption(figure, theme, title, "Each was run, and so was the next, which does not fit.")
    return figure
