"""The live blocks that stand in the way of a request: the cheapest set whose absence lets it in.

Rule: of all sets that would do, the one with the fewest live bytes is reported, and of equal ones
the one with the fewest blocks.  Two ways are searched exhaustively, and the cheaper one wins:

1. *a run*: neighbours in one segment that the request may use.  Without its live blocks the run
   is one free block that the request accepts.  A scan with two ends meets every minimal run.
2. *the driver*: whole segments, and whole handles of expandable segments, that would go back to
   the driver once empty, enough of them for the segment that was tried.  This is a knapsack,
   solved exactly over 2 MiB pages; beyond `LARGEST_TABLE` cells units are taken by cost per page.
   A request that would grow an expandable segment is taken to need whole handles, so the set may
   hold a handle too many; where a limit meets segments of broken pages, likewise a page.  In all
   these cases the set suffices, but `is_exact` is False.

A freed block that waits for another stream costs nothing in either way: it is on its way out.
Blocks that only a different order of requests would have put elsewhere are `tune`'s business.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from allocsim.core import PAGE
from allocsim.questions.explain.state_at_error import StateAtError
from allocsim.state import ALLOCATED, INACTIVE, BlockState, SegmentState
from allocsim.units import round_up

__all__ = ["LARGEST_TABLE", "Blockers", "blockers_of"]

LARGEST_TABLE = 30_000_000
"""Cells (units by pages) of the exact search; more than that would take seconds and much memory."""

_ONE = 1 << 20
_NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Blockers:
    """A set of live blocks in the way.

    way: "run" or "driver".
    cost_bytes: what they hold, slack included.
    freed_bytes: the free run that their absence makes, or what the driver gets back.
    is_exact: whether no cheaper set would do.
    """

    way: str
    cost_bytes: int
    freed_bytes: int
    blocks: tuple[BlockState, ...]
    is_exact: bool


def blockers_of(state: StateAtError) -> Blockers | None:
    """The cheapest set in the way of the state's request; None if no set would do.

    None means that even an empty PyTorch could not answer it, or that nothing was in the way.
    """
    usable = (segment for segment in state.segments if state.request.may_use(segment))
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
        while size - blocks[first].size >= state.request.rounded_bytes:
            size -= blocks[first].size
            cost -= _cost(blocks[first])
            count -= blocks[first].state == ALLOCATED
            first += 1
        if size >= state.request.rounded_bytes and (best is None or (cost, count) < best[:2]):
            merged = sum(each.size for each in blocks[slice(*_widened(blocks, first, last))])
            if state.request.accepts(merged):
                best = (cost, count, first, last)
    if best is None:
        return None
    cost, _, first, last = best
    start, stop = _widened(blocks, first, last)
    return Blockers(
        way="run",
        cost_bytes=cost,
        freed_bytes=sum(block.size for block in blocks[start:stop]),
        blocks=tuple(block for block in blocks[first : last + 1] if block.state == ALLOCATED),
        is_exact=True,
    )


def _widened(blocks: Sequence[BlockState], first: int, last: int) -> tuple[int, int]:
    """The run with the free blocks that it would merge with, as [start, stop)."""
    while first > 0 and blocks[first - 1].state == INACTIVE:
        first -= 1
    while last + 1 < len(blocks) and blocks[last + 1].state == INACTIVE:
        last += 1
    return first, last + 1


def _cost(block: BlockState) -> int:
    return block.size if block.state == ALLOCATED else 0


@dataclass(frozen=True, slots=True)
class _Unit:
    """What goes back to the driver as a whole once no live block touches it.

    shared: the live blocks that the unit before it, in the same segment, needs gone as well.
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
        is_exact=is_solved and is_even and not state.request.handle_size,
    )


def _needed(state: StateAtError) -> int:
    """Bytes that must go back before the driver and the limit let the request in."""
    request = state.request
    wanted = request.tried_bytes
    if request.handle_size:
        wanted = round_up(request.rounded_bytes, request.handle_size)
    need = wanted - state.free_bytes
    if state.limit_bytes is not None:
        reserved = sum(segment.total_size for segment in state.segments)
        need = max(need, reserved + request.tried_bytes - state.limit_bytes)
    return need


def _units(state: StateAtError, segment: SegmentState, *, counts_reserved: bool) -> Iterator[_Unit]:
    """counts_reserved: in whole pages of the segment's own size, as a limit counts it."""
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
    """Bytes, then blocks, as one number."""
    return sum(block.size for block in blocks) * _ONE + len(blocks)


def _knapsack(units: Sequence[_Unit], pages: int) -> list[_Unit]:
    """The units of at least `pages` at the least price.

    Two tables run along the units: the least price of j pages with the unit at hand left, and
    with it taken; a block that two neighbours share is paid once.  A block over three handles is
    paid twice if the middle one is left, which is never cheapest, since the middle is free then.
    """
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
    return _traced(units, was_taken, pages, is_taken=bool(taken[pages] < left[pages]))


def _traced(
    units: Sequence[_Unit],
    was_taken: Sequence[tuple[NDArray[np.bool_], NDArray[np.bool_]]],
    pages: int,
    *,
    is_taken: bool,
) -> list[_Unit]:
    """The choice that led to the last cell of the tables."""
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
    """The units by price per page until there are enough."""
    ordered = sorted(units, key=lambda unit: _price(unit.live) / unit.pages)
    before = [0, *accumulate(unit.pages for unit in ordered)]
    return [unit for unit, held in zip(ordered, before, strict=False) if held < pages]
