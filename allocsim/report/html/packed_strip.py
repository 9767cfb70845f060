"""SVG of all segments at one moment, a strip for each pool.

Allocated memory is visible however small it is.  With scripts, strip.js draws the same strips for
any moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from allocsim.analysis.picture import Instant
from allocsim.report.html.markup import legend, text
from allocsim.report.packing import WIDTH, PackedPool, packed, pieces_of
from allocsim.state import ALLOCATED, INACTIVE, PENDING, SegmentState
from allocsim.units import format_size

__all__ = ["packed_strip", "state_legend"]

_ROW, _ROW_GAP = 16, 3
_SHADES = 16
"""Number of distinct column heights, so that equal neighbours can be joined."""
_COLOURS = (("--kind-0", ALLOCATED), ("--kind-1", PENDING))


def state_legend(instant: Instant) -> str:
    """Return the HTML of a legend with the block states and the bytes in each state."""
    states = (
        ("allocated", ALLOCATED, "--kind-0"),
        ("waiting", PENDING, "--kind-1"),
        ("free", INACTIVE, "--free"),
    )
    return legend(
        (f"{name} {format_size(instant.held(state))}", paint) for name, state, paint in states
    )


def packed_strip(instant: Instant) -> str:
    """Return the HTML of the strips of all pools, with the name and bytes of each pool."""
    return "".join(map(_pool, packed(instant)))


def _pool(pool: PackedPool) -> str:
    shapes: dict[str, list[str]] = {}
    for segment, (at, wide) in zip(pool.segments, pool.places, strict=True):
        for paint, shape in _shapes(segment, at, wide):
            shapes.setdefault(paint, []).append(shape)
    paths = "".join(
        f'<path d="{"".join(each)}" style="fill: var({paint})"/>' for paint, each in shapes.items()
    )
    return (
        f'<figure class="pool"><figcaption>{text(pool.text)}</figcaption>'
        f'<svg class="strip" viewBox="0 0 {WIDTH} {pool.rows * (_ROW + _ROW_GAP)}" '
        f'aria-hidden="true">{paths}</svg></figure>\n'
    )


@dataclass(frozen=True, slots=True)
class _Run:
    """Adjacent pixel columns of a segment that look the same.

    first, last: first column, and the column after the last.
    tops: upper edges of the allocated and of the pending part, from 0 to `_SHADES`.
    """

    first: int
    last: int
    tops: tuple[int, int]


def _shapes(segment: SegmentState, at: int, wide: int) -> Iterator[tuple[str, str]]:
    """Yield (colour, SVG path) of a segment's background and of its active parts.

    at, wide: first unit and width in units of the segment on its strip.
    """
    for row, first, last in pieces_of(at, at + wide):
        yield "--free", _box(first, row, last - first, 0, _SHADES)
    for run in _runs(segment, wide):
        bottom = 0
        for (paint, _), top in zip(_COLOURS, run.tops, strict=True):
            if top > bottom:
                for row, first, last in pieces_of(at + run.first, at + run.last):
                    yield paint, _box(first, row, last - first, bottom, top)
            bottom = top


def _box(x: int, row: int, wide: int, bottom: int, top: int) -> str:
    high = (top - bottom) * _ROW // _SHADES
    y = row * (_ROW + _ROW_GAP) + _ROW - top * _ROW // _SHADES
    return f"M{x} {y}h{wide}v{high}h-{wide}z"


def _runs(segment: SegmentState, wide: int) -> Iterator[_Run]:
    tops = zip(_shaded(segment, ALLOCATED, wide), _shaded(segment, PENDING, wide), strict=True)
    at = 0
    for (allocated, waiting), run in groupby(tops):
        length = sum(1 for _ in run)
        yield _Run(at, at + length, (allocated, min(allocated + waiting, _SHADES)))
        at += length


def _shaded(segment: SegmentState, state: str, wide: int) -> list[int]:
    """Return the share of bytes in `state` of each of `wide` columns, from 0 to `_SHADES`.

    A share above 0 is at least 1.
    """
    share = [0.0] * wide
    scale = wide / segment.total_size
    for block in segment.blocks:
        if block.state != state:
            continue
        left = (block.address - segment.address) * scale
        right = left + block.size * scale
        for column in range(int(left), min(int(right) + 1, wide)):
            share[column] += max(min(right, column + 1) - max(left, column), 0.0)
    return [0 if each <= 0 else max(round(each * _SHADES), 1) for each in share]
