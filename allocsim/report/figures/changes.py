"""Chart of two runs: their memory curves, and the lines of code whose memory changed most.

Both curves have one scale.  The bars add up to the difference in allocated memory; the last bar is
the sum of all other lines of code.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from allocsim.analysis.compare import Comparison, Side
from allocsim.report.compare import PARTS
from allocsim.report.figures.canvas import (
    caption,
    legend,
    new_figure,
    styled,
    unit_of,
)
from allocsim.report.figures.theme import LIGHT
from allocsim.report.layout import clipped, number, plural, with_status
from allocsim.units import format_change, format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from allocsim.report.figures.theme import Theme

_MOST = 12
"""Largest number of owners with their own bar."""
_NAME = 44
"""Largest number of characters in an owner's name."""


def changes_figure(found: Comparison, theme: Theme = LIGHT) -> Figure:
    """Draw the curves of both runs, and a bar for each line of code that changed."""
    figure, (curves, bars) = new_figure(theme, 1, 2, width_ratios=[2, 3])
    _curves(curves, found, theme)
    _bars(bars, found, theme)
    a, b = found.a, found.b
    title = (
        f"reserved at the peak {format_size(a.reserved.reserved)} -> "
        f"{format_size(b.reserved.reserved)}, allocated {format_change(found.allocated_change)}"
    )
    parts = [f"{format_change(getattr(found.parts, name))} {what}" for name, what in PARTS.items()]
    parts[-1] += "; of an owner's bar the rose part is rounding"
    caption(figure, theme, title, f"A: {a.path}. B: {b.path}.", f"Reserved: {', '.join(parts)}.")
    return figure


def _curves(axes: Axes, found: Comparison, theme: Theme) -> None:
    sides = [("A", found.a, "--"), ("B", found.b, "-")]
    drawn = [(name, side, line) for name, side, line in sides if side.outline is not None]
    unit, shown = unit_of(max(side.reserved.reserved for _, side, _ in sides))
    for name, side, line in drawn:
        for what, colour in (("reserved", theme.reserved), ("allocated", theme.allocated)):
            x, y = _steps(side, what)
            label = f"{what}, {name}"
            axes.plot(x, y / unit, line, color=colour, lw=1, label=label, drawstyle="steps-post")
    if drawn:
        legend(axes, theme, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    else:
        axes.text(0.5, 0.5, "states only", color=theme.ink, ha="center", transform=axes.transAxes)
    axes.set_ylim(bottom=0)
    axes.set_xlim(0, 1.12 * axes.get_xlim()[1])
    step = _even(0.4 * axes.get_xlim()[1])
    axes.set_xticks([0, step, 2 * step])
    axes.xaxis.set_major_formatter("{x:,.0f}")
    styled(axes, theme, "entry (count)", f"memory ({shown})")


def _steps(side: Side, what: str) -> tuple[np.ndarray, np.ndarray]:
    outline = side.outline
    assert outline is not None
    values = np.array(getattr(outline, what))
    return np.linspace(0, outline.entries, len(values), endpoint=False), values


def _bars(axes: Axes, found: Comparison, theme: Theme) -> None:
    shown = list(_shown(found))
    unit, name = unit_of(max((abs(asked + more) for _, asked, more in shown), default=0))
    for row, (_, asked, rounding) in enumerate(reversed(shown)):
        colour = theme.alarm if asked + rounding > 0 else theme.ideal
        axes.barh(row, asked / unit, 0.7, color=colour, zorder=3)
        begins = asked / unit if asked * rounding > 0 else 0
        axes.barh(row, rounding / unit, 0.7, begins, color=theme.requested, zorder=4)
    axes.axvline(0, color=theme.ink, lw=1)
    labels = [owner for owner, _, _ in reversed(shown)]
    axes.set_yticks(range(len(labels)), labels, fontsize=7, parse_math=False)
    axes.yaxis.tick_right()
    styled(axes, theme, f"change of allocated memory, A to B ({name})", "")


def _even(entry: float) -> float:
    """Round an entry number to one significant digit, so that labels stay short."""
    return float(f"{entry:.0e}")


def _shown(found: Comparison) -> Iterator[tuple[str, int, int]]:
    """Yield (name, change in requested bytes, change in bytes added by rounding) of each bar."""
    changed = [each for each in found.changes if each.bytes]
    for each in changed[:_MOST]:
        yield clipped(with_status(each.status, each.owner), _NAME), each.requested, each.rounding
    rest = changed[_MOST:]
    if rest:
        owners = plural(len(rest), found.by) if found.by != "category" else number(len(rest))
        asked = sum(each.requested for each in rest)
        yield f"{owners} more", asked, sum(each.rounding for each in rest)
