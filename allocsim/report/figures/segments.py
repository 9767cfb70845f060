"""The segments at one moment, a bar each, with their blocks in place.

Rule: bars are drawn to scale within a panel, the small pool's segments of 2 MiB in one, all
others in another; what does not fit is counted in the caption, not dropped in silence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from allocsim.analysis.instant import ALLOCATED, FREE, WAITING, Instant, Place
from allocsim.analysis.picture import Picture
from allocsim.report.figures.canvas import HEIGHT, caption, legend_above, new_figure, styled
from allocsim.report.figures.memory import title_of
from allocsim.report.page import number, plural
from allocsim.units import GIB, KIB, MIB, format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from allocsim.report.figures.theme import Theme

__all__ = ["segments_figure"]

_MOST_BARS = 48
_SMALL_SEGMENT = 2 * MIB
_NARROW = 1 / 200
"""Of an axis: what is narrower has no gap around it."""
_FRAME_HEIGHT, _BAR_HEIGHT = 2.6, 0.35
"""Inches: of a figure without bars, and of a bar in it."""
_TITLE_HEIGHT = 13
"""Points: of a panel's title."""


def segments_figure(picture: Picture, theme: Theme, at: int | None = None) -> Figure:
    """The map of the moment after entry `at`; None: where reserved memory was highest."""
    instant = picture.at(at)
    large = [place for place in instant.places if place.size > _SMALL_SEGMENT]
    small = [place for place in instant.places if place.size <= _SMALL_SEGMENT]
    largest = max((place.size for place in large), default=0)
    unit, name = (GIB, "GiB") if largest >= 2 * GIB else (MIB, "MiB")
    panels = [panel for panel in ((large, unit, name), (small, KIB, "KiB")) if panel[0]]
    panels = panels or [([], MIB, "MiB")]
    ratios = (3, 2)[: len(panels)]
    rows = max(len(places) for places, _, _ in panels)
    height = min(HEIGHT, _FRAME_HEIGHT + _BAR_HEIGHT * rows)
    figure, panes = new_figure(theme, 1, len(panels), height=height, width_ratios=ratios)
    for axes, (places, unit, name) in zip(panes, panels, strict=True):
        _bars(axes, places, theme, unit, min(rows, 6))
        title = f"{plural(len(places), 'segment')}, {format_size(sum(p.size for p in places))}"
        axes.set_title(title, fontsize=9, color=theme.ink, loc="left")
        styled(axes, theme, f"offset in the segment ({name})", "segment (address)")
        axes.grid(visible=False)
    _legend(panes[0], theme, waits=bool(instant.held(WAITING)))
    hidden = sum(max(len(places) - _MOST_BARS, 0) for places, _, _ in panels)
    caption(
        figure,
        theme,
        title_of(picture, f"segments after entry {number(instant.entry)}"),
        _sentence(instant),
        f"Not drawn: {plural(hidden, 'segment')}, the smallest of each panel." if hidden else "",
    )
    return figure


def _sentence(instant: Instant) -> str:
    largest = max((place.largest_free for place in instant.places), default=0)
    return (
        f"{format_size(instant.reserved)} reserved, {format_size(instant.held(ALLOCATED))} "
        f"allocated, {format_size(instant.held(WAITING))} waiting for a stream, "
        f"{format_size(instant.held(FREE))} free; largest free block {format_size(largest)}."
    )


def _bars(axes: Axes, places: Sequence[Place], theme: Theme, unit: int, least_rows: int) -> None:
    shown = sorted(places, key=lambda place: -place.size)[:_MOST_BARS]
    shown.sort(key=lambda place: place.address)
    end = max((place.size for place in shown), default=unit)
    colours = {FREE: theme.free, WAITING: theme.kinds[1], ALLOCATED: theme.kinds[0]}
    for row, place in enumerate(shown):
        for state, colour in colours.items():
            pieces = [piece for piece in place.pieces if piece.state == state]
            axes.broken_barh(
                [((piece.address - place.address) / unit, piece.size / unit) for piece in pieces],
                (row - 0.4, 0.8), facecolor=colour, linewidth=0.25,
                # A gap around what is narrow would be all that one sees of it.
                edgecolor=[colour if p.size < _NARROW * end else theme.page for p in pieces],
                rasterized=len(pieces) > 500,
            )  # fmt: skip
    axes.set_yticks(range(len(shown)), [f"{place.address:#x}" for place in shown], fontsize=6)
    axes.set_ylim(-0.7, max(len(shown), least_rows) - 0.3)
    axes.set_xlim(-0.004 * end / unit, end / unit)


def _legend(axes: Axes, theme: Theme, *, waits: bool) -> None:
    from matplotlib.patches import Patch  # noqa: PLC0415

    waiting = [Patch(color=theme.kinds[1], label="freed, waiting for a stream")]
    handles = [
        Patch(color=theme.kinds[0], label="allocated"),
        *(waiting if waits else []),
        Patch(color=theme.free, label="free"),
    ]
    legend_above(axes, theme, handles, lift=_TITLE_HEIGHT)
