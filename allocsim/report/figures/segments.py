"""The segments at one moment, a bar each, with their blocks in place.

Rule: bars are drawn to scale within a panel: segments of at most 2 MiB in one, larger ones in
the other.  Segments that do not fit are counted in the caption.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from allocsim.questions.picture import Instant, Picture, Still
from allocsim.report.figures.canvas import (
    HEIGHT,
    caption,
    legend_above,
    new_figure,
    styled,
    unit_of,
)
from allocsim.report.figures.memory import title_of, warnings_of
from allocsim.report.figures.theme import LIGHT
from allocsim.report.layout import plural, when
from allocsim.state import ALLOCATED, INACTIVE, PENDING, SegmentState
from allocsim.units import KIB, MIB, format_size

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


def segments_figure(
    picture: Picture | Still, theme: Theme = LIGHT, at: str | int | None = None
) -> Figure:
    """The map of a moment (`Picture.at`); None: where reserved memory was highest."""
    instant = picture.at(at)
    large = [s for s in instant.segments if s.total_size > _SMALL_SEGMENT]
    small = [s for s in instant.segments if s.total_size <= _SMALL_SEGMENT]
    largest = max((segment.total_size for segment in large), default=0)
    panels = [panel for panel in ((large, *unit_of(largest)), (small, KIB, "KiB")) if panel[0]]
    panels = panels or [([], MIB, "MiB")]
    ratios = (3, 2)[: len(panels)]
    rows = max(len(segments) for segments, _, _ in panels)
    height = min(HEIGHT, _FRAME_HEIGHT + _BAR_HEIGHT * rows)
    figure, panes = new_figure(theme, 1, len(panels), height=height, width_ratios=ratios)
    for axes, (segments, unit, name) in zip(panes, panels, strict=True):
        _bars(axes, segments, theme, unit, min(rows, 6))
        size = format_size(sum(segment.total_size for segment in segments))
        title = f"{plural(len(segments), 'segment')}, {size}"
        axes.set_title(title, fontsize=9, color=theme.ink, loc="left")
        styled(axes, theme, f"offset in the segment ({name})", "segment (address)")
        axes.grid(visible=False)
    _legend(panes[0], theme, waits=bool(instant.held(PENDING)))
    hidden = sum(max(len(segments) - _MOST_BARS, 0) for segments, _, _ in panels)
    caption(
        figure,
        theme,
        title_of(picture, f"segments {when(instant)}"),
        *warnings_of(picture),
        _sentence(instant),
        f"Not drawn: {plural(hidden, 'segment')}, the smallest of each panel." if hidden else "",
    )
    return figure


def _sentence(instant: Instant) -> str:
    largest = max((segment.largest_free for segment in instant.segments), default=0)
    return (
        f"{format_size(instant.reserved)} reserved, {format_size(instant.held(ALLOCATED))} "
        f"allocated, {format_size(instant.held(PENDING))} waiting for a stream, "
        f"{format_size(instant.held(INACTIVE))} free; largest free block {format_size(largest)}."
    )


def _bars(
    axes: Axes, segments: Sequence[SegmentState], theme: Theme, unit: int, least_rows: int
) -> None:
    shown = sorted(segments, key=lambda segment: -segment.total_size)[:_MOST_BARS]
    shown.sort(key=lambda segment: segment.address)
    end = max((segment.total_size for segment in shown), default=unit)
    colours = {INACTIVE: theme.free, PENDING: theme.kinds[1], ALLOCATED: theme.kinds[0]}
    for row, segment in enumerate(shown):
        for state, colour in colours.items():
            blocks = [block for block in segment.blocks if block.state == state]
            axes.broken_barh(
                [((block.address - segment.address) / unit, block.size / unit) for block in blocks],
                (row - 0.4, 0.8), facecolor=colour, linewidth=0.25,
                # A gap around a narrow block would hide it.
                edgecolor=[colour if b.size < _NARROW * end else theme.page for b in blocks],
                rasterized=len(blocks) > 500,
            )  # fmt: skip
    axes.set_yticks(range(len(shown)), [f"{segment.address:#x}" for segment in shown], fontsize=6)
    axes.set_ylim(-0.7, max(len(shown), least_rows) - 0.3)
    axes.set_xlim(-0.004 * end / unit, end / unit)


def _legend(axes: Axes, theme: Theme, *, waits: bool) -> None:
    from matplotlib.patches import Patch  # noqa: PLC0415

    handles = [Patch(color=theme.kinds[0], label="allocated")]
    if waits:
        handles.append(Patch(color=theme.kinds[1], label="freed, waiting for a stream"))
    handles.append(Patch(color=theme.free, label="free"))
    legend_above(axes, theme, handles, lift=_TITLE_HEIGHT)
