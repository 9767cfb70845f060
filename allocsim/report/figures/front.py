"""The settings that `allocsim tune` tried: memory against driver calls.

Rule: a setting under which a request failed is drawn as a cross and is never on the front; the
front is that of `tuning/pareto.py`.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from allocsim.report.figures.canvas import caption, legend, new_figure, styled
from allocsim.report.page import number, plural
from allocsim.report.tried import Tried, TriedSetting
from allocsim.units import GIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from allocsim.report.figures.theme import Theme

__all__ = ["front_figure"]

_MOST_NAMES = 9
_NAME_WIDTH = 40


def front_figure(tried: Tried, theme: Theme) -> Figure:
    """The figure.  Retries are the size of a mark."""
    figure, (axes,) = new_figure(theme)
    whole = [each for each in tried.settings if each.is_whole]
    good = [each for each in whole if each.survives and each not in tried.front]
    failed = [each for each in whole if not each.survives]
    front = sorted(tried.front, key=lambda each: each.peak_reserved_bytes)
    _marks(axes, failed, theme.alarm, "x", f"out of memory ({len(failed)})")
    _marks(axes, good, theme.allocated, "o", f"every request answered ({len(good)})")
    _marks(axes, front, theme.ideal, "D", "on the front: none is better in all")
    axes.plot(*_points(front), color=theme.ideal, linewidth=1, drawstyle="steps-post", zorder=2)
    axes.margins(x=0.06, y=0.12)
    styled(axes, theme, "peak of reserved memory (GiB)", "driver calls (count)")
    handles = [*axes.get_legend_handles_labels()[0], *_names(axes, front, theme)]
    legend(axes, theme, handles, loc="upper left", bbox_to_anchor=(1.01, 1.02), labelspacing=0.8)
    given_up = len(tried.settings) - len(whole)
    caption(
        figure,
        theme,
        f"{tried.path.rsplit('/', 1)[-1]}: settings tried",
        f"{number(len(tried.settings))} settings. Left and down is better; a larger mark has more "
        "retries (each empties the whole cache).",
        f"Not drawn: {number(given_up)} given up half-way, since others were better already."
        if given_up
        else "",
        f"Named are the first {_MOST_NAMES} on the front." if len(front) > _MOST_NAMES else "",
    )
    return figure


def _names(axes: Axes, front: list[TriedSetting], theme: Theme) -> list[Line2D]:
    """A number at each mark of the front, and what the legend says of it."""
    from matplotlib.lines import Line2D  # noqa: PLC0415

    handles = []
    for row, each in enumerate(front[:_MOST_NAMES], start=1):
        x, y = each.peak_reserved_bytes / GIB, each.driver_calls
        axes.annotate(
            str(row), (x, y), xytext=(5, 5), textcoords="offset points", fontsize=9,
            fontweight="bold", color=theme.ink, zorder=5,
        )  # fmt: skip
        conf = textwrap.fill((each.conf or "(defaults)").replace(",", ", "), _NAME_WIDTH)
        retries = plural(each.num_alloc_retries, "retry", "retries")
        text = f"{conf}\n{x:.2f} GiB, {plural(y, 'call')}, {retries}"
        handles.append(Line2D([], [], linestyle="", marker=f"${row}$", color=theme.ink, label=text))
    return handles


def _points(settings: list[TriedSetting]) -> tuple[list[float], list[int]]:
    return (
        [each.peak_reserved_bytes / GIB for each in settings],
        [each.driver_calls for each in settings],
    )


def _marks(
    axes: Axes, settings: list[TriedSetting] | tuple[TriedSetting, ...], colour: str,
    marker: str, label: str,
) -> None:  # fmt: skip
    if settings:
        sizes = [30 + 8 * min(each.num_alloc_retries, 40) for each in settings]
        x, y = _points(list(settings))
        axes.scatter(x, y, s=sizes, c=colour, marker=marker, label=label, zorder=3)
