"""Memory of the device when a request fails: its uses, and the live blocks to free.

`blockers_of` finds the cheapest set of live blocks that must be freed for the request to succeed.
There are two ways:

1. "run" (of blocks): adjacent blocks of a segment are freed and merge into one free block that the
   request accepts.  A scan with two pointers finds every minimal group of blocks.
2. "driver": segments, or handles (mapped pages) of expandable segments, become empty and return to
   the driver.  This is a knapsack problem, solved exactly over pages of 2 MiB; if its table would
   exceed `LARGEST_TABLE` cells, segments and handles are chosen by cost per page.

A freed block that waits for another stream costs nothing, since its memory becomes free anyway.
Source: semantics 6.5 (segments), 1.8 (the request), 5.6 (pools marked use_on_oom).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from allocsim.core import (
    PAGE,
    SMALL_SIZE,
    AllocatorConfig,
    Block,
    CachingAllocator,
    handle_sizes,
    helping_pools,
    largest_request,
    pool_of_requests,
    returnable_pools,
)
from allocsim.state import (
    ALLOCATED,
    DEFAULT_POOL,
    INACTIVE,
    PENDING,
    BlockState,
    PoolId,
    SegmentState,
)
from allocsim.units import round_up


@dataclass(frozen=True, slots=True)
class StateAtError:
    """Device and simulated allocator when a request fails, after the allocator's last attempt.

    tried_bytes: size of the segment that the request needs from the driver.
    stream, pool_id: stream and pool of the request.
    helping_pools: private pools marked use_on_oom, which serve the request when the device is full.
    handle_size: if the request grows an expandable segment, the size of one mapped handle; 0 if it
        calls cudaMalloc.
    context_bytes: memory held outside PyTorch, for example by the CUDA context.
    limit_bytes: largest number of reserved bytes that a memory fraction allows; None without one.
    releases_cache: False during the capture of a CUDA graph, when no memory returns to the driver.
    returnable_pools: pools whose free segments return to the driver when a request fails.
    handle_sizes: dictionary from the address of each expandable segment to the size of its handles.
    recorded_addresses: dictionary from the address of each block in use to its recorded address.
    others_bytes: part of context_bytes that other processes hold.
    """

    rounded_bytes: int
    tried_bytes: int
    stream: int
    pool_id: PoolId
    helping_pools: tuple[PoolId, ...]
    handle_size: int
    config: AllocatorConfig
    total_bytes: int
    free_bytes: int
    context_bytes: int
    limit_bytes: int | None
    releases_cache: bool
    returnable_pools: frozenset[PoolId]
    handle_sizes: Mapping[int, int]
    largest_request_bytes: int
    segments: tuple[SegmentState, ...]
    recorded_addresses: Mapping[int, int]
    others_bytes: int = 0

    @classmethod
    def of(
        cls,
        allocator: CachingAllocator,
        rounded: int,
        stream: int,
        recorded: Mapping[int, Block] | None = None,
        others: int = 0,
    ) -> StateAtError:
        """Copy the state of `allocator` after a request of `rounded` bytes failed.

        recorded: dictionary from the recorded address of a block in use to the block, whose address
            in the replay may differ.
        others: bytes of the device that other processes hold.
        """
        device, config = allocator.device, allocator.config
        pool_id = pool_of_requests(allocator, stream)
        is_mapped = pool_id == DEFAULT_POOL or allocator.release.expandable_private_pools
        handle = PAGE if rounded <= SMALL_SIZE else config.large_segment_size
        return cls(
            rounded_bytes=rounded,
            tried_bytes=config.segment_size(rounded),
            stream=stream,
            pool_id=pool_id,
            helping_pools=helping_pools(allocator, stream),
            handle_size=handle if config.expandable_segments and is_mapped else 0,
            config=config,
            total_bytes=device.total,
            free_bytes=device.free,
            context_bytes=device.context_memory,
            limit_bytes=allocator.memory_limit,
            releases_cache=not allocator.in_capture,
            returnable_pools=returnable_pools(allocator),
            handle_sizes=handle_sizes(allocator),
            largest_request_bytes=largest_request(allocator, stream),
            segments=allocator.segments(),
            recorded_addresses={block.ptr: address for address, block in (recorded or {}).items()},
            others_bytes=min(others, device.context_memory),
        )

    def may_use(self, segment: SegmentState) -> bool:
        return (
            segment.stream == self.stream
            and segment.is_small == (self.rounded_bytes <= SMALL_SIZE)
            and segment.pool_id in (self.pool_id, *self.helping_pools)
            and (self.config.expandable_segments or not segment.is_expandable)
        )

    def accepts(self, size: int) -> bool:
        return self.config.accepts(self.rounded_bytes, size)

    def driver_bytes(self, segment: SegmentState) -> int:
        """Return the bytes of the driver's pages (2 MiB) that a segment occupies."""
        size = segment.total_size
        return size if segment.is_expandable else round_up(size, PAGE)


KINDS = {
    "live": "requested and in use",
    "slack": "in live blocks beyond the requested size",
    "pending": "freed, but waiting for work on another stream",
    "late": "large enough, but freed only while the request was failing",
    "private_pool": "idle, but kept for a private pool (a CUDA graph, a MemPool)",
    "default_pool": "idle, but outside the private pool of the request",
    "other_stream": "idle, but kept for another stream",
    "other_size_pool": "idle, but in the pool of the other size (small: up to 1 MiB)",
    "interleaved": "idle between live blocks of a segment",
    "whole_segments": "idle in whole segments",
    "driver_rounding": "lost to the driver's pages of 2 MiB",
    "free": "free on the device",
    "other_processes": "held by other processes on the card",
    "context": "outside PyTorch: the CUDA context and its libraries",
}
"""Dictionary from the name of each use of device memory to its description.

A byte counts for the first use that applies to it.
"""


def kinds_of(state: StateAtError) -> dict[str, int]:
    """Return a dictionary from each use of device memory (`KINDS`) to its bytes, which may be 0."""
    kinds: Counter[str] = Counter(dict.fromkeys(KINDS, 0))
    for segment in state.segments:
        kinds["driver_rounding"] += state.driver_bytes(segment) - segment.total_size
        for block in segment.blocks:
            if block.state == ALLOCATED:
                kinds["live"] += block.requested_size
                kinds["slack"] += block.size - block.requested_size
            elif block.state == PENDING:
                kinds["pending"] += block.size
            else:
                kinds[_idle_kind(state, segment, block)] += block.size
    kinds["free"] = state.free_bytes
    kinds["other_processes"] = state.others_bytes
    kinds["context"] = state.context_bytes - state.others_bytes
    return dict(kinds)


def _idle_kind(state: StateAtError, segment: SegmentState, block: BlockState) -> str:
    if state.may_use(segment) and state.accepts(block.size):
        return "late"
    if segment.pool_id not in (DEFAULT_POOL, state.pool_id):
        return "private_pool"
    if segment.pool_id != state.pool_id:
        return "default_pool"
    if segment.stream != state.stream:
        return "other_stream"
    if segment.is_small != (state.rounded_bytes <= SMALL_SIZE):
        return "other_size_pool"
    return "whole_segments" if segment.is_idle else "interleaved"


LARGEST_TABLE = 30_000_000
"""Largest table of the knapsack search, in cells; a larger table would take seconds."""

_ONE = 1 << 20  # weight of one byte in `_price`, above any number of blocks
_NEVER = 1 << 62  # price of a number of pages that cannot be reached


@dataclass(frozen=True, slots=True)
class Blockers:
    """Live blocks that must be freed for a request to succeed.

    way: "run" if the freed blocks merge into one free block that serves the request; "driver" if
        segments or handles are released, so that the driver has enough memory for the request.
    cost_bytes: size of all `blocks`.
    freed_bytes: size of the resulting free block, or bytes that return to the driver.
    is_exact: True if it is certain that no cheaper set is enough.
    """

    way: str
    cost_bytes: int
    freed_bytes: int
    blocks: tuple[BlockState, ...]
    is_exact: bool


def blockers_of(state: StateAtError) -> Blockers | None:
    """Return the cheapest set of live blocks to free so that the failed request would succeed.

    Return None if no set is enough, or if the request would succeed without freeing live blocks.
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
class _Returnable:
    # A segment, or a handle of an expandable segment: it returns to the driver as a whole.
    pages: int  # of 2 MiB
    live: tuple[BlockState, ...]  # blocks that overlap it
    shared: tuple[BlockState, ...]  # block of `live` that also overlaps the previous handle


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


def _units(
    state: StateAtError, segment: SegmentState, *, counts_reserved: bool
) -> Iterator[_Returnable]:
    # A memory limit counts reserved bytes.  Without a limit, the released pages count.
    if segment.pool_id not in state.returnable_pools:
        return
    live = [block for block in segment.blocks if block.state == ALLOCATED]
    handle = state.handle_sizes.get(segment.address, 0)
    if not handle:
        size = segment.total_size if counts_reserved else state.driver_bytes(segment)
        yield _Returnable(size // PAGE, tuple(live), ())
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
        yield _Returnable(handle // PAGE, touching, shared)
        before = touching


def _price(blocks: Sequence[BlockState]) -> int:
    return sum(block.size for block in blocks) * _ONE + len(blocks)


def _knapsack(units: Sequence[_Returnable], pages: int) -> list[_Returnable]:
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
    chosen, is_taken = [], bool(taken[pages] < left[pages])
    for unit, (before_left, before_taken) in zip(reversed(units), reversed(was_taken), strict=True):
        if is_taken:
            chosen.append(unit)
            is_taken = bool(before_taken[pages])
            pages = max(pages - unit.pages, 0)
        else:
            is_taken = bool(before_left[pages])
    return chosen


def _by_ratio(units: Sequence[_Returnable], pages: int) -> list[_Returnable]:
    ordered = sorted(units, key=lambda unit: _price(unit.live) / unit.pages)
    before = [0, *accumulate(unit.pages for unit in ordered)]
    return [unit for unit, held in zip(ordered, before, strict=False) if held < pages]
