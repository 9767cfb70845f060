"""Smallest set of live blocks that must be freed for a request to succeed.

The result is the set with the fewest live bytes; among equal sets, the set with the fewest blocks.
A request can succeed in two ways, and the cheaper way is reported:

1. *run*: in a segment that the request may use, adjacent blocks are freed and merge into one free
   block that the request accepts.  A scan with two pointers finds every minimal run of blocks.
2. *driver*: segments, or handles (mapped pages) of expandable segments, become empty and return to
   the driver, which then has enough memory for a new segment.  This is a knapsack problem, solved
   exactly over pages of 2 MiB.  If its table would exceed `LARGEST_TABLE` cells, segments and
   handles are chosen by cost per page instead.

In three cases the reported set suffices, but a smaller set may exist, and `is_exact` is False: the
table is too large; the request grows an expandable segment (one handle too many is possible); a
limit applies and segments are not whole pages (one page too many is possible).

A freed block that waits for another stream costs nothing, since its memory becomes free anyway.
Other settings might have placed the blocks differently, which is not considered here; see `tune`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from allocsim.analysis.explain.state_at_error import StateAtError
from allocsim.core import PAGE
from allocsim.state import ALLOCATED, INACTIVE, BlockState, SegmentState
from allocsim.units import round_up

LARGEST_TABLE = 30_000_000
"""Largest table of the exact search, in cells; a larger table would take seconds."""

_ONE = 1 << 20  # weight of one byte in `_price`, above any number of blocks
_NEVER = 1 << 62  # price of a number of pages that cannot be reached


@dataclass(frozen=True, slots=True)
class Blockers:
    """Live blocks that must be freed for a request to succeed.

    way: "run" if the request then fits into one segment; "driver" if memory returns to the driver.
    cost_bytes: sum of the block sizes, including rounding.
    freed_bytes: size of the resulting free block, or bytes that return to the driver.
    is_exact: True if no cheaper set suffices.
    """

    way: str
    cost_bytes: int
    freed_bytes: int
    blocks: tuple[BlockState, ...]
    is_exact: bool


def blockers_of(state: StateAtError) -> Blockers | None:
    """Return the cheapest set of live blocks to free so that the failed request would succeed.

    Return None if freeing every block would not suffice, or if no block is in the way.
    """
    usable = (segment for segment in state.segments if state.may_use(segment))
    runs = [_cheapest_run(state, segment.blocks) for segment in usable]
    found = [*(run for run in runs if run is not None), *_driver(state)]
    best = min(found, key=lambda each: (each.cost_bytes, len(each.blocks)), default=None)
    if best is None or not best.blocks:
        return None
    return replace(best, is_exact=all(each.is_exact for each in found))


def _cheapest_run(state: StateAtError, blocks: Sequence[BlockState]) -> Blockers | None:
    best: tuple[int, int, int, int] | None = None
    first = size = cost = count = 0
    for last, block in enumerate(blocks):
        size += block.size
        cost, count = cost + _cost(block), count + (block.state == ALLOCATED)
        while size - blocks[first].size >= state.rounded_bytes:
            size -= blocks[first].size
            cost -= _cost(blocks[first])
            count -= blocks[first].state == ALLOCATED
            first += 1
        if size >= state.rounded_bytes and (best is None or (cost, count) < best[:2]):
            merged = sum(
                each.size for each in blocks[slice(*_with_free_neighbours(blocks, first, last))]
            )
            if state.accepts(merged):
                best = (cost, count, first, last)
    if best is None:
        return None
    cost, _, first, last = best
    start, stop = _with_free_neighbours(blocks, first, last)
    return Blockers(
        way="run",
        cost_bytes=cost,
        freed_bytes=sum(block.size for block in blocks[start:stop]),
        blocks=tuple(block for block in blocks[first : last + 1] if block.state == ALLOCATED),
        is_exact=True,
    )


def _with_free_neighbours(blocks: Sequence[BlockState], first: int, last: int) -> tuple[int, int]:
    while first > 0 and blocks[first - 1].state == INACTIVE:
        first -= 1
    while last + 1 < len(blocks) and blocks[last + 1].state == INACTIVE:
        last += 1
    return first, last + 1


def _cost(block: BlockState) -> int:
    return block.size if block.state == ALLOCATED else 0


@dataclass(frozen=True, slots=True)
class _Unit:
    """Segment or handle, which returns to the driver as a whole once it has no live block.

    pages: size in pages of 2 MiB.
    live: live blocks that overlap the unit.
    shared: live blocks that also overlap the previous unit of the same segment.
    """

    pages: int
    live: tuple[BlockState, ...]
    shared: tuple[BlockState, ...]


def _driver(state: StateAtError) -> Iterator[Blockers]:
    need = _needed(state)
    has_limit = state.limit_bytes is not None
    units = [unit for s in state.segments for unit in _units(state, s, counts_reserved=has_limit)]
    is_even = not has_limit or all(segment.total_size % PAGE == 0 for segment in state.segments)
    pages = -(-need // PAGE)
    if need <= 0 or not state.releases_cache or sum(unit.pages for unit in units) < pages:
        return
    is_solved = len(units) * (pages + 1) <= LARGEST_TABLE
    chosen = _knapsack(units, pages) if is_solved else _by_ratio(units, pages)
    blocks = {block.address: block for unit in chosen for block in unit.live}
    yield Blockers(
        way="driver",
        cost_bytes=sum(block.size for block in blocks.values()),
        freed_bytes=sum(unit.pages for unit in chosen) * PAGE,
        blocks=tuple(blocks[address] for address in sorted(blocks)),
        is_exact=is_solved and is_even and not state.handle_size,
    )


def _needed(state: StateAtError) -> int:
    wanted = state.tried_bytes
    if state.handle_size:
        wanted = round_up(state.rounded_bytes, state.handle_size)
    need = wanted - state.free_bytes
    if state.limit_bytes is not None:
        reserved = sum(segment.total_size for segment in state.segments)
        need = max(need, reserved + state.tried_bytes - state.limit_bytes)
    return need


def _units(state: StateAtError, segment: SegmentState, *, counts_reserved: bool) -> Iterator[_Unit]:
    # A limit counts reserved bytes.  Otherwise the pages that the driver receives count.
    if not state.is_returnable(segment):
        return
    live = [block for block in segment.blocks if block.state == ALLOCATED]
    handle = state.handle_sizes.get(segment.address, 0)
    if not handle:
        size = segment.total_size if counts_reserved else state.driver_bytes(segment)
        yield _Unit(size // PAGE, tuple(live), ())
        return
    first = 0
    before: tuple[BlockState, ...] = ()
    for start in range(segment.address, segment.end, handle):
        end = start + handle
        while first < len(live) and live[first].end <= start:
            first += 1
        last = first
        while last < len(live) and live[last].address < end:
            last += 1
        touching = tuple(live[first:last])
        shared = touching[:1] if before and touching and before[-1] is touching[0] else ()
        yield _Unit(handle // PAGE, touching, shared)
        before = touching


def _price(blocks: Sequence[BlockState]) -> int:
    return sum(block.size for block in blocks) * _ONE + len(blocks)


def _knapsack(units: Sequence[_Unit], pages: int) -> list[_Unit]:
    # Dynamic programming: `left[j]` and `taken[j]` are the lowest price of j pages without and with
    # the current unit.  A block shared by two adjacent taken units is counted once.  A block that
    # spans three handles is counted twice if only the outer handles are taken, but this is never
    # the cheapest choice, since the middle handle would cost nothing more.
    left = np.full(pages + 1, _NEVER, dtype=np.int64)
    taken = left.copy()
    left[0] = 0
    was_taken: list[tuple[NDArray[np.bool_], NDArray[np.bool_]]] = []
    steps = np.arange(pages + 1)
    for unit in units:
        source = np.maximum(steps - unit.pages, 0)
        after_left = left[source] + _price(unit.live)
        after_taken = taken[source] + _price(unit.live) - _price(unit.shared)
        was_taken.append((taken < left, after_taken < after_left))
        left = np.minimum(left, taken)
        taken = np.minimum(np.minimum(after_left, after_taken), _NEVER)
    return _units_taken(units, was_taken, pages, is_taken=bool(taken[pages] < left[pages]))


def _units_taken(
    units: Sequence[_Unit],
    was_taken: Sequence[tuple[NDArray[np.bool_], NDArray[np.bool_]]],
    pages: int,
    *,
    is_taken: bool,
) -> list[_Unit]:
    chosen = []
    for unit, (before_left, before_taken) in zip(reversed(units), reversed(was_taken), strict=True):
        if is_taken:
            chosen.append(unit)
            is_taken = bool(before_taken[pages])
            pages = max(pages - unit.pages, 0)
        else:
            is_taken = bool(before_left[pages])
    return chosen


def _by_ratio(units: Sequence[_Unit], pages: int) -> list[_Unit]:
    ordered = sorted(units, key=lambda unit: _price(unit.live) / unit.pages)
    before = [0, *accumulate(unit.pages for unit in ordered)]
    return [unit for unit, held in zip(ordered, before, strict=False) if held < pages]
