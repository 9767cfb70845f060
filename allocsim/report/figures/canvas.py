"""An empty figure in a theme's colours, and what every figure has: title, axes, a caption.

Rule: every axis is given its label with its unit here, so that none goes without.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from allocsim.report.figures.theme import Theme

__all__ = ["caption", "entries_axis", "legend", "new_figure", "styled"]

WIDTH, HEIGHT = 10.0, 5.6
"""Inches."""


def new_figure(
    theme: Theme, rows: int = 1, columns: int = 1, **grid: Any
) -> tuple[Figure, Sequence[Axes]]:
    """A figure and its axes, row by row.  grid: for matplotlib's `subplots`."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(WIDTH, HEIGHT), facecolor=theme.page, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **grid)
    return figure, list(axes.flat)


def styled(axes: Axes, theme: Theme, x: str, y: str) -> None:
    """Colours and labels; x, y: what the axes show, and the unit in brackets."""
    axes.set_facecolor(theme.page)
    axes.set_xlabel(x, color=theme.ink)
    axes.set_ylabel(y, color=theme.ink)
    axes.tick_params(colors=theme.ink, which="both")
    for side, spine in axes.spines.items():
        spine.set_color(theme.ink if side in ("left", "bottom") else theme.page)
    axes.grid(color=theme.faint, linewidth=0.5, alpha=0.7)
    axes.set_axisbelow(True)


def entries_axis(axes: Axes) -> None:
    """Entry numbers with their thousands set apart."""
    from matplotlib.ticker import StrMethodFormatter  # noqa: PLC0415

    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def legend(axes: Axes, theme: Theme, handles: Sequence[Any] | None = None, **where: Any) -> None:
    """What the colours mean, in the theme's own."""
    options: dict[str, Any] = {"frameon": False, "labelcolor": theme.ink, "fontsize": 8, **where}
    if handles is None:
        axes.legend(**options)
    else:
        axes.legend(handles=handles, **options)


def caption(figure: Figure, theme: Theme, title: str, *notes: str) -> None:
    """The title, and under the figure what one has to know to read it."""
    figure.suptitle(title, color=theme.ink, fontsize=11, x=0.01, ha="left")
    text = textwrap.fill(" ".join(note for note in notes if note), 150)
    figure.supxlabel(text, color=theme.ink, fontsize=7.5, x=0.01, ha="left")
