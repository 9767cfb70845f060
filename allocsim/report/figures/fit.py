"""Charts of the answers of `allocsim fit`: memory needed on each card, and largest sizes.

All cards share one scale.  A need is drawn in full even if it exceeds the card.  Each point of
largest sizes was computed; the next larger value was computed too, and does not fit.  Nothing is
interpolated between points.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from allocsim._repr import printable
from allocsim.report.figures.canvas import (
    caption,
    legend,
    new_figure,
    styled,
    unit_of,
    whole_numbers,
)
from allocsim.report.figures.theme import LIGHT
from allocsim.report.layout import number, plural
from allocsim.units import format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from allocsim.fitting import Answered, ReadFront
    from allocsim.report.figures.theme import Theme

_MOST = 24
"""Largest number of cards in a figure."""
_HEIGHT = 0.6


def cards_figure(answers: Sequence[Answered], theme: Theme = LIGHT) -> Figure:
    """Draw a bar for each card; the bar of a single card is split by category of memory."""
    shown = sorted(answers[:_MOST], key=lambda each: each.device_memory)
    figure, (axes,) = new_figure(theme)
    unit, name = unit_of(max(max(each.device_memory, each.needed_bytes) for each in shown))
    for row, each in enumerate(shown):
        room = each.device_memory - each.context_memory
        axes.barh(row, each.device_memory / unit, _HEIGHT + 0.2, color=theme.faint, zorder=1)
        axes.vlines(room / unit, row - 0.4, row + 0.4, color=theme.ink, lw=1, zorder=4)
        _bar(axes, row, each, theme, unit, by_use=len(shown) == 1)
    axes.set_yticks(range(len(shown)), [printable(each.name) for each in shown])
    axes.set_ylim(-0.7, max(len(shown) - 0.3, 1.2))
    styled(axes, theme, f"memory ({name})", "")
    if len(shown) == 1:
        legend(axes, theme, loc="upper left", ncols=3)
    notes = ["Grey: the card; the line: what its CUDA context leaves of it."]
    if len(answers) > _MOST:
        notes.append(f"Drawn are the first {_MOST} of {plural(len(answers), 'card')}.")
    caption(figure, theme, _title(answers), *notes)
    return figure


def _bar(axes: Axes, row: int, each: Answered, theme: Theme, unit: int, *, by_use: bool) -> None:
    """Draw the needed memory; `by_use` gives each category of memory a colour."""
    if not by_use or not each.breakdown or not each.fits:
        colour = theme.allocated if each.fits else theme.alarm
        label = "reserved at the peak" if each.fits else "needed"
        axes.barh(row, each.needed_bytes / unit, _HEIGHT, color=colour, label=label, zorder=3)
        return
    left, most = 0, len(theme.kinds) - 1
    parts = sorted(each.breakdown.items(), key=lambda part: -part[1])
    rest = sum(size for _, size in parts[most:])
    for (name, size), colour in zip([*parts[:most], ("other", rest)], theme.kinds, strict=False):
        if size:
            axes.barh(row, size / unit, _HEIGHT, left / unit, color=colour, label=name, zorder=3)
        left += size


def _title(answers: Sequence[Answered]) -> str:
    if len(answers) > 1:
        fitting = sum(each.fits for each in answers)
        return f"{format_size(answers[0].needed_bytes)}: {fitting} of {len(answers)} cards have it"
    (one,) = answers
    verb = "fits" if one.fits else "does not fit"
    return f"{format_size(one.needed_bytes)} {verb} {printable(one.name)}"


def frontier_figure(front: ReadFront, theme: Theme = LIGHT) -> Figure:
    """Draw the largest value of the first size that fits, for each value of the second size."""
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
