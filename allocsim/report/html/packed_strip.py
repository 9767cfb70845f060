"""All segments of a moment as strips, one a pool, drawn without scripts.

Rule: what is in use of a segment is seen, however little it is.  The page draws the same from its
numbers for any moment (strip.js).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from allocsim.questions.picture import Instant
from allocsim.report.html.markup import legend, text
from allocsim.report.packing import WIDTH, PackedPool, packed, pieces_of
from allocsim.state import ALLOCATED, INACTIVE, PENDING, SegmentState
from allocsim.units import format_size

__all__ = ["packed_strip", "state_legend"]

_ROW, _ROW_GAP = 16, 3
_SHADES = 16
"""Heights that a column of a segment can have, so that equal neighbours are one shape."""
_COLOURS = (("--kind-0", ALLOCATED), ("--kind-1", PENDING))


def state_legend(instant: Instant) -> str:
    """The colours of the states, with the bytes in each."""
    states = (
        ("allocated", ALLOCATED, "--kind-0"),
        ("waiting", PENDING, "--kind-1"),
        ("free", INACTIVE, "--free"),
    )
    return legend(
        (f"{name} {format_size(instant.held(state))}", paint) for name, state, paint in states
    )


def packed_strip(instant: Instant) -> str:
    """The strips, each below its pool's name and bytes."""
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
        f'<figure class="pool"><figcaption>{text(pool.told)}</figcaption>'
        f'<svg class="strip" viewBox="0 0 {WIDTH} {pool.rows * (_ROW + _ROW_GAP)}" '
        f'aria-hidden="true">{paths}</svg></figure>\n'
    )


@dataclass(frozen=True, slots=True)
class _Run:
    """Columns of one look.  tops: where allocated and waiting end, in shades from the bottom."""

    first: int
    last: int
    tops: tuple[int, int]


def _shapes(segment: SegmentState, at: int, wide: int) -> Iterator[tuple[str, str]]:
    """The segment's ground and what is in use of it, column by column, as (colour, path)."""
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
    """Of each column of a segment the share in `state`, in shades; what is there is seen."""
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
