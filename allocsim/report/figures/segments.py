"""Charts of one moment: a bar for each segment, divided into its blocks, and block sizes.

Segments up to 2 MiB are in one panel, larger segments in another; each panel has one scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from allocsim.analysis.picture import Instant, Picture, Still, block_sizes
from allocsim.report.figures.canvas import (
    HEIGHT,
    LIGHT,
    Theme,
    caption,
    legend,
    legend_above,
    new_figure,
    styled,
    unit_of,
)
from allocsim.report.figures.memory import title_of, warnings_of
from allocsim.report.layout import plural, when
from allocsim.report.packing import WIDTH, PackedPool, packed, pieces_of
from allocsim.state import ALLOCATED, INACTIVE, PENDING, SegmentState
from allocsim.units import GIB, KIB, MIB, format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_MOST_BARS = 48
_SMALL_SEGMENT = 2 * MIB
_NARROW = 1 / 200
"""Width of a block, as a share of the axis, below which no gap is drawn around it."""
_FRAME_HEIGHT, _BAR_HEIGHT = 2.6, 0.35
"""Height in inches of a figure without bars, and of a bar."""
_STRIP_HEIGHT, _STRIP = 0.2, 0.85
"""Height in inches of a row of packed segments, and the share of it that is not a gap."""
_LEAST_LINE = 0.1
"""Width in points of the line around a block; it makes the smallest block visible."""
_TITLE_HEIGHT = 13
"""Height of a panel's title, in points."""


def segments_figure(
    picture: Picture | Still, theme: Theme = LIGHT, at: str | int | None = None
) -> Figure:
    """Draw a bar for each segment, divided into its blocks.

    at: "peak" (of allocated memory), "oom", "end" or the number of an entry; None for the peak of
        reserved memory.
    """
    instant = picture.at(at)
    large = [s for s in instant.segments if s.total_size > _SMALL_SEGMENT]
    small = [s for s in instant.segments if s.total_size <= _SMALL_SEGMENT]
    largest = max((segment.total_size for segment in large), default=0)
    panels = [panel for panel in ((large, *unit_of(largest)), (small, KIB, "KiB")) if panel[0]]
    if any(len(segments) > _MOST_BARS for segments, _, _ in panels):
        return _strips(picture, instant, theme)
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
    _legend(panes[0], instant, theme)
    caption(
        figure,
        theme,
        title_of(picture, f"segments {when(instant)}"),
        *warnings_of(picture),
        _sentence(instant),
    )
    return figure


def _strips(picture: Picture | Still, instant: Instant, theme: Theme) -> Figure:
    pools = packed(instant)
    rows = sum(pool.rows + 1 for pool in pools)
    figure, (axes,) = new_figure(theme, height=_FRAME_HEIGHT + _STRIP_HEIGHT * rows)
    at = 0
    for pool in pools:
        axes.text(0, at + 0.75, pool.text, fontsize=7.5, color=theme.ink, parse_math=False)
        _strip(axes, pool, at + 1, theme)
        at += pool.rows + 1
    size, wide = max((p.segments[0].total_size, p.places[0][1]) for p in pools)
    row = format_size(round(size / wide * WIDTH))
    styled(axes, theme, f"segments side by side (a row is {row})", "rows of segments (by pool)")
    axes.grid(visible=False)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_xlim(0, WIDTH)
    axes.set_ylim(at, 0)
    _legend(axes, instant, theme, lift=0)
    caption(
        figure,
        theme,
        title_of(picture, f"segments {when(instant)}"),
        *warnings_of(picture),
        _sentence(instant),
        f"All {len(instant.segments):,} segments, the largest of each pool first; one scale, "
        "but none is drawn narrower than a 400th of a row.",
    )
    return figure


def _strip(axes: Axes, pool: PackedPool, top: int, theme: Theme) -> None:
    found: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for segment, (at, wide) in zip(pool.segments, pool.places, strict=True):
        for row, first, last in pieces_of(at, at + wide):
            found.setdefault((row, theme.free), []).append((first, last - first))
            for block in segment.blocks:
                if block.state == INACTIVE:
                    continue
                scale = wide / segment.total_size
                left = at + (block.address - segment.address) * scale - row * WIDTH
                low, high = max(left, first), min(left + block.size * scale, last)
                colour = theme.kinds[0 if block.state == ALLOCATED else 1]
                if low < high:
                    found.setdefault((row, colour), []).append((low, high - low))
    for (row, colour), spans in found.items():
        line = 0.0 if colour == theme.free else _LEAST_LINE
        axes.broken_barh(
            spans, (top + row, _STRIP), facecolor=colour, edgecolor=colour, linewidth=line,
            rasterized=len(spans) > 500,
        )  # fmt: skip


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
    shown = sorted(segments, key=lambda segment: segment.address)
    end = max((segment.total_size for segment in shown), default=unit)
    colours = {INACTIVE: theme.free, PENDING: theme.kinds[1], ALLOCATED: theme.kinds[0]}
    for row, segment in enumerate(shown):
        for state, colour in colours.items():
            blocks = [block for block in segment.blocks if block.state == state]
            axes.broken_barh(
                [((block.address - segment.address) / unit, block.size / unit) for block in blocks],
                (row - 0.4, 0.8), facecolor=colour, linewidth=0.25,
                # A gap between blocks would hide a narrow block.
                edgecolor=[colour if b.size < _NARROW * end else theme.page for b in blocks],
                rasterized=len(blocks) > 500,
            )  # fmt: skip
    axes.set_yticks(range(len(shown)), [f"{segment.address:#x}" for segment in shown], fontsize=6)
    axes.set_ylim(-0.7, max(len(shown), least_rows) - 0.3)
    axes.set_xlim(-0.004 * end / unit, end / unit)


def _legend(axes: Axes, instant: Instant, theme: Theme, lift: float = _TITLE_HEIGHT) -> None:
    from matplotlib.patches import Patch  # noqa: PLC0415

    kinds = [
        (ALLOCATED, "allocated", theme.kinds[0]),
        (PENDING, "freed, waiting for a stream", theme.kinds[1]),
        (INACTIVE, "free", theme.free),
    ]
    handles = [
        Patch(color=colour, label=f"{name} {format_size(instant.held(state))}")
        for state, name, colour in kinds
        if state != PENDING or instant.held(PENDING)
    ]
    legend_above(axes, theme, handles, lift=lift)


_FEW = 200
"""Count below which the axis has labels at 1, 2 and 5 times each power of ten.

With this count or more, the axis has labels at the powers of ten only.
"""


def block_sizes_figure(
    picture: Picture | Still, theme: Theme = LIGHT, at: str | int | None = None
) -> Figure:
    """Draw two histograms by block size: number of blocks over the run, memory at one moment.

    at: "peak" (of allocated memory), "oom", "end" or the number of an entry; None for the peak of
        reserved memory.
    """
    instant = picture.at(at)
    is_still = isinstance(picture, Still)
    sizes = block_sizes(None if isinstance(picture, Still) else picture.lives, instant)
    figure, (above, below) = new_figure(theme, 2, 1, sharex=True)
    x = np.arange(len(sizes.handed_out))
    above.bar(x, sizes.handed_out, width=0.9, color=theme.allocated)
    _count_axis(above, int(sizes.handed_out.max(initial=1)))
    most = int(max(sizes.used_bytes.max(initial=0), sizes.free_bytes.max(initial=0)))
    unit, name = (GIB, "GiB") if most >= GIB else (MIB, "MiB")
    below.bar(x - 0.22, sizes.used_bytes / unit, width=0.44, color=theme.kinds[0], label="in use")
    below.bar(x + 0.22, sizes.free_bytes / unit, width=0.44, color=theme.alarm, label="free")
    styled(above, theme, "", f"blocks {'in use' if is_still else 'allocated'} (count)")
    styled(below, theme, "size of the block (from, in bytes)", f"memory ({name})")
    below.set_ylim(0, 1.05 * max(most, MIB) / unit)
    below.set_xticks(x, [_text(int(edge)) for edge in sizes.edges[:-1]], rotation=45, ha="right")
    legend(below, theme, loc="lower right", bbox_to_anchor=(1, 0.97), ncols=2)
    total = int(sizes.handed_out.sum())
    caption(
        figure,
        theme,
        title_of(picture, "block sizes"),
        *warnings_of(picture),
        f"Above: {plural(total, 'block')} "
        f"{'in use' if is_still else 'over the whole recording'}. Below: the blocks "
        f"{when(instant)}.",
        "A bar at 1 MiB holds sizes from 1 MiB up to, not including, 2 MiB.",
    )
    return figure


def _count_axis(axes: Axes, most: int) -> None:
    from matplotlib.ticker import StrMethodFormatter, SymmetricalLogLocator  # noqa: PLC0415

    axes.set_yscale("symlog", linthresh=1)
    axes.set_ylim(0, 1.3 * most)
    steps = (1, 2, 5) if most < _FEW else (1,)
    axes.yaxis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=1, subs=steps))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def _text(size: int) -> str:
    for unit, name in ((GIB, "Gi"), (MIB, "Mi"), (KIB, "Ki")):
        if size >= unit:
            return f"{size // unit} {name}B"
    return f"{size} B"
