"""Layout of all segments at one moment in rows of a figure, pool by pool, like words in lines.

The width of a segment is proportional to its bytes, but not less than a minimum.  A row is `WIDTH`
units wide.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from allocsim.analysis.picture import Instant
from allocsim.report.layout import plural
from allocsim.state import ALLOCATED, DEFAULT_POOL, INACTIVE, PENDING, PoolId, SegmentState
from allocsim.units import format_size

WIDTH = 1200
"""Width of a row of the figure, in units: pixels on a wide screen."""
_ROWS = 6
"""Approximate number of rows of all pools together; more if many segments have minimum width."""
_LEAST, _GAP = 3, 1


@dataclass(frozen=True, slots=True)
class PackedPool:
    """Segments of one pool, the largest first, placed on rows of `WIDTH` units.

    name: description of the pool, such as "small, stream 0x7".
    text: name, number of segments and bytes, to be shown.
    places: (start, width) of each segment in units, counted as if all rows were one long row.
    """

    name: str
    text: str
    segments: tuple[SegmentState, ...]
    places: tuple[tuple[int, int], ...]

    @property
    def rows(self) -> int:
        at, wide = self.places[-1]
        return -(-(at + wide) // WIDTH)


def packed(instant: Instant) -> list[PackedPool]:
    """Return the segments of each pool, placed on rows of equal width; default pools come first."""
    pools: dict[str, list[SegmentState]] = {}
    for segment in sorted(instant.segments, key=lambda s: (-s.total_size, s.address)):
        pools.setdefault(segment_pool(segment), []).append(segment)
    scale = _units_per_byte([segment.total_size for segment in instant.segments])
    names = sorted(pools, key=lambda name: (name.count(","), name))
    return [_pool(name, pools[name], scale) for name in names]


def pieces_of(first: int, last: int) -> Iterator[tuple[int, int, int]]:
    """Cut a segment or block where a row of the figure ends; yield (row, begin, end) of each piece.

    first, last: start and end of the segment or block in units, as if all rows were one long row.
    begin, end: start and end of a piece in units, counted from the beginning of its row.
    """
    while first < last:
        row = first // WIDTH
        end = min(last, (row + 1) * WIDTH)
        yield row, first - row * WIDTH, end - row * WIDTH
        first = end


def pool_text(*, is_small: bool, is_expandable: bool, pool: PoolId, stream: int) -> str:
    """Describe a pool: "large", "small, private pool (0, 1), stream 0x7"."""
    size = "expandable" if is_expandable else "small" if is_small else "large"
    private = "" if pool == DEFAULT_POOL else f", private pool {pool}"
    return size + private + (f", stream {stream:#x}" if stream else "")


def segment_pool(segment: SegmentState) -> str:
    return pool_text(
        is_small=segment.is_small,
        is_expandable=segment.is_expandable,
        pool=segment.pool_id,
        stream=segment.stream,
    )


SEGMENT_HEADS = ("size", "allocated", "waiting", "free", "largest free block", "pool")


def segment_cells(segment: SegmentState) -> tuple[str, ...]:
    held = map(segment.held, (ALLOCATED, PENDING, INACTIVE))
    sizes = (segment.total_size, *held, segment.largest_free)
    return *map(format_size, sizes), segment_pool(segment)


def _units_per_byte(sizes: Sequence[int]) -> float:
    least = len(sizes) * (_LEAST + _GAP)
    room = max(_ROWS, -(-2 * least // WIDTH)) * WIDTH
    low, high = 0.0, room / max(sum(sizes), 1)
    for _ in range(40):
        middle = (low + high) / 2
        is_over = sum(_wide(size, middle) + _GAP for size in sizes) > room
        low, high = (low, middle) if is_over else (middle, high)
    return low


def _wide(size: int, scale: float) -> int:
    return max(round(size * scale), _LEAST)


def _pool(name: str, segments: Sequence[SegmentState], scale: float) -> PackedPool:
    held = {state: sum(s.held(state) for s in segments) for state in (ALLOCATED, PENDING, INACTIVE)}
    waiting = f", {format_size(held[PENDING])} waiting" if held[PENDING] else ""
    text = (
        f"{name}: {format_size(sum(held.values()))} in {plural(len(segments), 'segment')}, "
        f"{format_size(held[ALLOCATED])} allocated{waiting}, {format_size(held[INACTIVE])} free"
    )
    places, at = [], 0
    for segment in segments:
        wide = _wide(segment.total_size, scale)
        places.append((at, wide))
        at += wide + _GAP
    return PackedPool(name, text, tuple(segments), tuple(places))
