"""What every figure has: a theme's colours, title, axes, a caption, a file.

Rule: every axis gets its label with its unit here, and no text that comes from a recording is read
as a formula or runs out of the figure.  The same figure gives the same file: no date, and no
random names within an SVG.
"""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from allocsim.errors import ConfigError
from allocsim.report.layout import printable
from allocsim.units import GIB, MIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

    from allocsim.report.figures.theme import Theme

__all__ = [
    "caption", "legend", "legend_above", "new_figure", "points", "save_figure", "styled",
    "unit_of", "whole_numbers",
]  # fmt: skip

WIDTH, HEIGHT = 10.0, 5.6
"""Inches."""
_SMALL = 8
"""Points: of a legend's letters."""
_MOST_COLUMNS = 5
_LEGEND_WIDTH = 0.86 * WIDTH * 72
"""Points: what is left of the width beside the labels of an axis."""
_HANDLE, _GAP = 2.8 * _SMALL, 2.0 * _SMALL
"""Points: matplotlib's own, of a legend's handle with its space, and between columns."""
_TITLE_LETTERS, _CAPTION_LETTERS = 100, 170
_DOTS_PER_INCH = 170


def new_figure(
    theme: Theme, rows: int = 1, columns: int = 1, *, height: float = HEIGHT, **grid: Any
) -> tuple[Figure, Sequence[Axes]]:
    """A figure and its axes, row by row.  height: inches.  grid: for matplotlib's `subplots`."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(WIDTH, height), facecolor=theme.page, layout="constrained")
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


def unit_of(most: int) -> tuple[int, str]:
    """The unit for sizes up to `most` bytes: its bytes and its name."""
    return (GIB, "GiB") if most >= 2 * GIB else (MIB, "MiB")


def whole_numbers(axis: Axis) -> None:
    """Label an axis with whole numbers, their thousands set apart."""
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter  # noqa: PLC0415

    axis.set_major_locator(MaxNLocator(nbins="auto", steps=[1, 2, 2.5, 5, 10], integer=True))
    axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def legend(axes: Axes, theme: Theme, handles: Sequence[Any] | None = None, **where: Any) -> None:
    """A legend in the theme's colours.  handles: None for all that the axes have."""
    options: dict[str, Any] = {"frameon": False, "labelcolor": theme.ink, "fontsize": _SMALL}
    shown = axes.get_legend_handles_labels()[0] if handles is None else handles
    # Labels are set afterwards: matplotlib may leave out labels that begin with "_".
    made = axes.legend(shown, [" "] * len(shown), **options, **where)
    for text, handle in zip(made.get_texts(), shown, strict=True):
        text.set_parse_math(False)
        text.set_text(handle.get_label())


def legend_above(
    axes: Axes, theme: Theme, handles: Sequence[Any] | None = None, *, lift: float = 0
) -> None:
    """A legend between the axes and the figure's title.  lift: points of room below it."""
    from matplotlib.transforms import ScaledTranslation  # noqa: PLC0415

    shown = axes.get_legend_handles_labels()[0] if handles is None else handles
    columns = _columns([str(handle.get_label()) for handle in shown])
    over = axes.transAxes + ScaledTranslation(0, lift / 72, axes.figure.dpi_scale_trans)
    where = {"loc": "lower left", "bbox_to_anchor": (0, 1), "bbox_transform": over}
    legend(axes, theme, shown, ncols=columns, **where)


def _columns(labels: Sequence[str]) -> int:
    """The most columns of a legend that stay within the figure, filled one after the other."""
    widths = np.array([points(label) + _HANDLE for label in labels])
    for count in range(min(len(widths), _MOST_COLUMNS), 1, -1):
        columns = np.array_split(widths, count)
        if sum(column.max() + _GAP for column in columns) <= _LEGEND_WIDTH:
            return count
    return 1


def points(text: str, size: float = _SMALL) -> float:
    """How wide `text` is in letters of `size` points."""
    from matplotlib.font_manager import FontProperties  # noqa: PLC0415
    from matplotlib.textpath import text_to_path  # noqa: PLC0415

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ ")
        width: float = text_to_path.get_text_width_height_descent(
            text, FontProperties(size=size), ismath=False
        )[0]
    return width


def caption(figure: Figure, theme: Theme, title: str, *notes: str) -> None:
    """The title, and the notes below the figure."""
    left: dict[str, Any] = {"color": theme.ink, "x": 0.01, "ha": "left", "parse_math": False}
    figure.suptitle(textwrap.fill(printable(title), _TITLE_LETTERS), fontsize=11, **left)
    text = textwrap.fill(" ".join(note for note in notes if note), _CAPTION_LETTERS)
    figure.supxlabel(text, fontsize=7.5, **left)


def save_figure(figure: Figure, path: str) -> None:
    """Write `figure` to `path`.  Raises ConfigError for another suffix or an error of the disk."""
    suffix = Path(path).suffix.lower()
    if suffix not in (".png", ".svg"):
        raise ConfigError(f"{path}: a figure's name must end in .png or .svg")
    from matplotlib import rc_context  # noqa: PLC0415

    metadata: dict[str, str | None] = {"Date": None} if suffix == ".svg" else {}
    try:
        with (
            rc_context({"svg.hashsalt": "allocsim", "svg.fonttype": "none"}),
            warnings.catch_warnings(),
        ):
            # A letter that the font lacks is drawn as a box, which says enough.
            warnings.filterwarnings("ignore", r"Glyph \d+ ")
            figure.savefig(path, dpi=_DOTS_PER_INCH, metadata=metadata)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from None
