"""All segments of a moment as strips, one a pool, packed into rows like words into lines.

Rule: every segment is drawn, however many there are; one scale for all, but for segments that
would be narrower than a few pixels, which are drawn that wide.  The page draws the same from its
numbers for any moment (strip.js).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from allocsim.questions.picture import Instant
from allocsim.report.html.markup import text
from allocsim.report.layout import plural
from allocsim.state import ALLOCATED, DEFAULT_POOL, INACTIVE, PENDING, PoolId, SegmentState
from allocsim.units import format_size

__all__ = ["packed_strip", "pool_text", "segment_pool", "state_legend"]

_WIDTH = 1200
"""Of a row, in the image's own units: pixels on a wide screen."""
_ROW, _ROW_GAP = 16, 3
_ROWS = 6
"""Rows that the segments fill, unless they are too many."""
_LEAST, _GAP = 3, 1
_SHADES = 16
"""Heights that a column of a segment can have, so that equal neighbours are one shape."""
_COLOURS = (("--kind-0", ALLOCATED), ("--kind-1", PENDING))


def pool_text(*, is_small: bool, is_expandable: bool, pool: PoolId, stream: int) -> str:
    """Which requests may use a segment: "large", "small, private pool (0, 1), stream 0x7"."""
    size = "expandable" if is_expandable else "small" if is_small else "large"
    private = "" if pool == DEFAULT_POOL else f", private pool {pool}"
    return size + private + (f", stream {stream:#x}" if stream else "")


def state_legend(instant: Instant) -> str:
    """The colours of the states, with the bytes in each."""
    items = " ".join(
        f'<span><i style="color: var({paint})"></i>{name} {format_size(instant.held(state))}</span>'
        for paint, name, state in (
            ("--kind-0", "allocated", ALLOCATED),
            ("--kind-1", "waiting", PENDING),
            ("--free", "free", INACTIVE),
        )
    )
    return f'<p class="legend">{items}</p>\n'


def packed_strip(instant: Instant) -> str:
    """The strips, each below its pool's name and bytes; the largest segments of a pool first."""
    pools: dict[str, list[SegmentState]] = {}
    for segment in sorted(instant.segments, key=lambda s: (-s.total_size, s.address)):
        pools.setdefault(segment_pool(segment), []).append(segment)
    scale = _scale([segment.total_size for segment in instant.segments])
    return "".join(_pool(name, pools[name], scale) for name in sorted(pools, key=_rank))


def segment_pool(segment: SegmentState) -> str:
    """`pool_text` of a segment."""
    return pool_text(
        is_small=segment.is_small,
        is_expandable=segment.is_expandable,
        pool=segment.pool_id,
        stream=segment.stream,
    )


def _rank(name: str) -> tuple[int, str]:
    """The default pools first."""
    return name.count(","), name


def _scale(sizes: Sequence[int]) -> float:
    """Units a byte, so that the segments fill their rows."""
    least = len(sizes) * (_LEAST + _GAP)
    room = max(_ROWS, -(-2 * least // _WIDTH)) * _WIDTH
    low, high = 0.0, room / max(sum(sizes), 1)
    for _ in range(40):
        middle = (low + high) / 2
        is_over = sum(_wide(size, middle) + _GAP for size in sizes) > room
        low, high = (low, middle) if is_over else (middle, high)
    return low


def _wide(size: int, scale: float) -> int:
    return max(round(size * scale), _LEAST)


def _pool(name: str, segments: Sequence[SegmentState], scale: float) -> str:
    held = {state: sum(s.held(state) for s in segments) for state in (ALLOCATED, PENDING, INACTIVE)}
    waiting = f", {format_size(held[PENDING])} waiting" if held[PENDING] else ""
    told = (
        f"{name}: {format_size(sum(held.values()))} in {plural(len(segments), 'segment')}, "
        f"{format_size(held[ALLOCATED])} allocated{waiting}, {format_size(held[INACTIVE])} free"
    )
    shapes: dict[str, list[str]] = {}
    at = 0
    for segment in segments:
        wide = _wide(segment.total_size, scale)
        for paint, shape in _shapes(segment, at, wide):
            shapes.setdefault(paint, []).append(shape)
        at += wide + _GAP
    rows = -(-at // _WIDTH)
    paths = "".join(
        f'<path d="{"".join(each)}" style="fill: var({paint})"/>' for paint, each in shapes.items()
    )
    return (
        f'<figure class="pool"><figcaption>{text(told)}</figcaption>'
        f'<svg class="strip" viewBox="0 0 {_WIDTH} {rows * (_ROW + _ROW_GAP)}" '
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
    for row, first, last in _pieces(at, at + wide):
        yield "--free", _box(first, row, last - first, 0, _SHADES)
    for run in _runs(segment, wide):
        bottom = 0
        for (paint, _), top in zip(_COLOURS, run.tops, strict=True):
            if top > bottom:
                for row, first, last in _pieces(at + run.first, at + run.last):
                    yield paint, _box(first, row, last - first, bottom, top)
            bottom = top


def _pieces(first: int, last: int) -> Iterator[tuple[int, int, int]]:
    """A stretch of the strip as (row, first, last) of the rows that it lies in."""
    while first < last:
        row = first // _WIDTH
        end = min(last, (row + 1) * _WIDTH)
        yield row, first - row * _WIDTH, end - row * _WIDTH
        first = end


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
