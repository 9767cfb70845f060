"""Pinned host memory in a recording: the blocks after each entry, and the reasons for growth.

Each recorded request is checked against PyTorch's rule: a request takes the newest free block of
the same power of two, and a new block only if none of them is large enough.  Source: semantics
13.2.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from allocsim.host.pool import bucket_of
from allocsim.recording import Action, Trace
from allocsim.state import ALLOCATED, INACTIVE, PENDING, BlockState, PoolId, SegmentState


class GrowthCause(Enum):
    """Reason why a request could take no free block, so that new host memory was pinned."""

    IN_USE = "all blocks of the size were in use"
    WAITING = "freed blocks of the size waited for a copy to finish"
    TOO_SMALL = "the free blocks of the bucket were smaller"
    FIRST = "no block of the size existed"


@dataclass(frozen=True, slots=True)
class Growth:
    """Block that was newly pinned because no free block could serve a request.

    entry: index of the segment_alloc entry of the block.
    size: bytes of the block.
    frames: stack index of the request; -1 if unknown.
    cached: bytes of all free blocks at that entry.
    """

    entry: int
    size: int
    cause: GrowthCause
    frames: int
    cached: int


@dataclass(frozen=True, slots=True)
class HostTotals:
    """Bytes of pinned memory after an entry, by state of the blocks.

    entry: index of the entry; -1 for the state before the first entry.
    in_use: bytes of blocks that the program has allocated.
    waiting: bytes of blocks that the program has freed, but that a copy may still use.
    cached: bytes of free blocks.
    """

    entry: int
    in_use: int
    waiting: int
    cached: int

    @property
    def pinned(self) -> int:
        return self.in_use + self.waiting + self.cached


@dataclass(frozen=True, slots=True)
class HostCourse:
    """Summary of pinned memory in a recording: totals, newly pinned blocks and checked requests.

    start, end: totals before the first and after the last entry.
    peak_in_use: totals when the bytes in use were highest, for the first time.
    peak: totals when the pinned bytes were highest, for the first time.
    growths: newly pinned blocks, in order.
    released: bytes that were released to the driver, in all.
    requests: number of requests in the recording.
    checked: number of requests for which PyTorch's rule determines the block to take.
    agreed: number of checked requests that took this block.
    """

    start: HostTotals
    end: HostTotals
    peak_in_use: HostTotals
    peak: HostTotals
    growths: tuple[Growth, ...]
    released: int
    requests: int
    checked: int
    agreed: int


@dataclass(slots=True, eq=False)
class _Block:
    address: int
    size: int
    pool: PoolId
    state: str
    frames: int = -1
    is_from_before: bool = False


@dataclass(slots=True)
class _Blocks:
    all: dict[int, _Block] = field(default_factory=dict)
    free: dict[tuple[PoolId, int], list[_Block]] = field(default_factory=dict)
    bytes: Counter[str] = field(default_factory=Counter)

    def add(self, block: _Block) -> None:
        self.all[block.address] = block
        self.bytes[block.state] += block.size
        if block.state == INACTIVE:
            self.bucket(block).append(block)

    def bucket(self, block: _Block) -> list[_Block]:
        return self.free.setdefault((block.pool, bucket_of(block.size)), [])

    def set_state(self, block: _Block, state: str) -> None:
        self.bytes[block.state] -= block.size
        if block.state == INACTIVE:
            self.bucket(block).remove(block)
        block.state = state
        self.bytes[state] += block.size
        if state == INACTIVE:
            self.bucket(block).append(block)

    def remove(self, block: _Block) -> None:
        self.set_state(block, "")
        del self.all[block.address], self.bytes[""]

    def totals(self, entry: int) -> HostTotals:
        held = self.bytes
        return HostTotals(entry, held[ALLOCATED], held[PENDING], held[INACTIVE])


def follow(trace: Trace, stop: int | None = None) -> HostCourse:
    """Compute the pinned memory after each entry, and return a summary.

    trace: pinned host memory of a recording (`load_host`).
    stop: index of the first entry to leave out; None for all entries.
    """
    walk = _Walk(trace)
    start = peak = peak_in_use = end = walk.blocks.totals(-1)
    for entry in walk.entries(stop):
        end = walk.blocks.totals(entry)
        peak = max(peak, end, key=lambda totals: totals.pinned)
        peak_in_use = max(peak_in_use, end, key=lambda totals: totals.in_use)
    return HostCourse(
        start=start,
        end=end,
        peak_in_use=peak_in_use,
        peak=peak,
        growths=tuple(walk.growths),
        released=walk.released,
        requests=walk.requests,
        checked=walk.checked,
        agreed=walk.agreed,
    )


def state_after(trace: Trace, entry: int) -> Trace:
    """Return the pinned memory after an entry, as a trace that has segments but no entries.

    entry: index of the entry; -1 for the state before the first one.
    """
    walk = _Walk(trace)
    deque(walk.entries(entry + 1), maxlen=0)
    segments = tuple(_segment(block) for _, block in sorted(walk.blocks.all.items()))
    columns: dict[str, Any] = {name: column[:0] for name, column in trace.columns().items()}
    return replace(trace, segments=segments, **columns)


class _Walk:
    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self.blocks = _Blocks()
        self.growths: list[Growth] = []
        self.released = self.requests = self.checked = self.agreed = 0
        for block in _blocks_before(trace):
            self.blocks.add(block)

    def entries(self, stop: int | None = None) -> Iterator[int]:
        trace = self._trace
        n_entries = len(trace) if stop is None else min(stop, len(trace))
        for entry in range(n_entries):
            action, address = Action(int(trace.action[entry])), int(trace.addr[entry])
            if action is Action.SEGMENT_ALLOC:
                self._grow(entry, address)
            elif (block := self.blocks.all.get(address)) is not None:
                self._change(entry, action, block)
            yield entry

    def _grow(self, entry: int, address: int) -> None:
        trace = self._trace
        size, frames = int(trace.size[entry]), int(trace.frames[entry])
        block = _Block(address, size, _pool(trace, entry), ALLOCATED, frames)
        free = self.blocks.bucket(block)
        self.checked += 1
        self.agreed += all(other.size < size for other in free)
        cached = self.blocks.bytes[INACTIVE]
        self.growths.append(Growth(entry, size, self._cause(block, free), frames, cached))
        self.blocks.add(block)

    def _cause(self, block: _Block, free: list[_Block]) -> GrowthCause:
        if free:
            return GrowthCause.TOO_SMALL
        bucket = bucket_of(block.size)
        same = [
            other.state
            for other in self.blocks.all.values()
            if other.pool == block.pool and bucket_of(other.size) == bucket
        ]
        if PENDING in same:
            return GrowthCause.WAITING
        return GrowthCause.IN_USE if same else GrowthCause.FIRST

    def _change(self, entry: int, action: Action, block: _Block) -> None:
        if action is Action.ALLOC:
            self.requests += 1
            if block.state == INACTIVE:
                self._check_takes_newest(block)
            block.frames = int(self._trace.frames[entry])
            self.blocks.set_state(block, ALLOCATED)
        elif action is Action.FREE_REQUESTED:
            self.blocks.set_state(block, PENDING)
        elif action is Action.FREE_COMPLETED:
            block.is_from_before = False
            self.blocks.set_state(block, INACTIVE)
        elif action is Action.SEGMENT_FREE:
            self.released += block.size
            self.blocks.remove(block)

    def _check_takes_newest(self, block: _Block) -> None:
        free = self.blocks.bucket(block)
        if any(other.is_from_before for other in free):
            return  # The order of their frees is not recorded.
        self.checked += 1
        newer = free[free.index(block) + 1 :]
        self.agreed += all(other.size < block.size for other in newer)


_STATE_BEFORE = {
    Action.ALLOC: INACTIVE,
    Action.FREE_REQUESTED: ALLOCATED,
    Action.FREE_COMPLETED: PENDING,
    Action.SEGMENT_FREE: INACTIVE,
}


def _blocks_before(trace: Trace) -> Iterator[_Block]:
    first: dict[int, int] = {}
    for entry in range(len(trace)):
        first.setdefault(int(trace.addr[entry]), entry)
    for address, entry in first.items():
        action = Action(int(trace.action[entry]))
        if action in _STATE_BEFORE:
            pool, size = _pool(trace, entry), int(trace.size[entry])
            yield _Block(address, size, pool, _STATE_BEFORE[action], is_from_before=True)
    for segment in trace.segments:
        if segment.address not in first:
            (block,) = segment.blocks
            where = segment.address, segment.total_size, segment.pool_id
            yield _Block(*where, block.state, block.frames, is_from_before=True)


def _pool(trace: Trace, entry: int) -> PoolId:
    pool = int(trace.pool_id[entry])
    return (0, 0) if pool < 0 else trace.pool_ids[pool]


def _segment(block: _Block) -> SegmentState:
    part = BlockState(block.address, block.size, block.size, block.state, block.frames)
    return SegmentState(block.address, block.size, 0, False, block.pool, False, (part,))
