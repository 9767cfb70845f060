"""Rule by which the driver chose addresses in a recording (address policy), for what-if replays.

A what-if (a replay under other settings) obtains other segments than the recorded run, so it must
choose their addresses.  It uses the policy that reproduces most of the recorded addresses.  A
recording also shows changes of the address space that PyTorch's requests do not explain; a what-if
repeats them at the same request:

- a hole: free memory in a chunk (a multiple of 32 MiB) that was created for something else;
- a gap: a free range between chunks, where the driver can create a new chunk;
- taken memory: a free range that something else, such as a library, has allocated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from allocsim._fast_numpy import any_of
from allocsim.core import (
    ADDRESS_CHUNK,
    DRIVER_RANGES,
    PAGE,
    UNLIMITED_DEVICE,
    AddressEvent,
    AddressEventKind,
    Arena,
    Device,
)
from allocsim.recording import Action, Trace
from allocsim.state import SegmentState
from allocsim.units import round_up

_GAP, _HOLE, _TAKEN = AddressEventKind.GAP, AddressEventKind.HOLE, AddressEventKind.TAKEN

LEAST_SHARE = 0.5
"""Least share of segments that a chosen address policy places at their recorded addresses."""

MOST_MOVES = 20_000
"""Maximum number of segment entries to examine; far fewer suffice to find the address policy."""

LEAST_CHUNKS = 2
"""Least number of new chunks (address ranges at multiples of 32 MiB) in a recording with which the
address policy "driver" (see `Addresses`) is considered."""

LEAST_RUNS, ALIGNED_SHARE = 4, 0.75
"""Evidence for the address policy "driver" (`Addresses`): the least number of ranges of adjacent
segments, and the least share of these ranges that begin at a multiple of 32 MiB."""


@dataclass(frozen=True, slots=True)
class DatedEvent:
    """Change of the address space by code other than PyTorch.

    entry: number of the recorded entry before which a replay repeats the change.
    """

    entry: int
    event: AddressEvent


@dataclass(frozen=True, slots=True)
class Addresses:
    """Placement of segments in a what-if of a recording.

    policy: "bump" never reuses an address, "firstfit" takes the lowest free range, "driver" chooses
        as the CUDA driver does (`core/arena.py`).
    base: address at which the policy begins; None for the recording's first address.
    events: changes of the address space that the recording shows, in order; only for "driver".
    n_segments: number of segments that the recording obtains by cudaMalloc.
    n_right: number of these segments that the policy places at their recorded address.
    is_known: False if no policy reproduces half of the recorded addresses, and "bump" is assumed.
    """

    policy: str = "bump"
    base: int | None = None
    events: tuple[DatedEvent, ...] = ()
    n_segments: int = 0
    n_right: int = 0
    is_known: bool = True

    def others(self) -> Iterator[Addresses]:
        """Yield other plausible placements; replays with them bound the peak of a what-if."""
        if not self.is_known:
            yield replace(self, policy="firstfit")
            yield replace(self, policy="driver", base=None)
        elif self.policy == "driver" and not self.n_segments:
            # Without recorded segments, a new segment may also go to a hole of the context.
            yield replace(self, policy="firstfit")
        elif self.events:
            yield replace(self, events=())
            yield replace(self, events=tuple(map(_with_gap_and_hole_exchanged, self.events)))


def _with_gap_and_hole_exchanged(dated: DatedEvent) -> DatedEvent:
    # A recording cannot distinguish a gap from a hole.
    kinds = {_GAP: _HOLE, _HOLE: _GAP}
    event = dated.event
    return replace(dated, event=replace(event, kind=kinds.get(event.kind, event.kind)))


def read_addresses(trace: Trace, start: Sequence[SegmentState]) -> Addresses:
    """Return the address policy that places the most segments at their recorded addresses."""
    moves = _moves_of(trace)
    n_segments = sum(move.is_alloc for move in moves)
    bump = _read_simple_policy("bump", moves, start)
    if bump.n_right == n_segments > 1:
        return bump
    firstfit = _read_simple_policy("firstfit", moves, start)
    driver, n_chunks = _read_driver_policy(moves, start)
    looks_like_driver = _looks_like_driver(trace, moves, start)
    if n_segments < 2:  # every policy reproduces the first address
        return driver if looks_like_driver else bump
    known = [bump, firstfit]  # events explain any address, so "driver" needs evidence
    if n_chunks >= LEAST_CHUNKS or looks_like_driver:
        known.append(driver)
    found = max(known, key=lambda each: each.n_right)
    if found.n_right >= LEAST_SHARE * n_segments:
        return found
    return replace(bump, is_known=False)


def _read_driver_policy(
    moves: Sequence[_Move], start: Sequence[SegmentState]
) -> tuple[Addresses, int]:
    # `n_right` is counted in a second pass that knows the events of the first pass.
    first = _DriverReading(start)
    for move in moves:
        first.read(move)
    shown = first.result()
    second = _DriverReading(start, shown)
    for move in moves:
        second.read(move)
    return replace(shown, n_right=second.n_right), first.n_chunks


@dataclass(frozen=True, slots=True)
class _Move:
    """Entry that obtains or releases a segment, with the segment's address range in whole pages."""

    entry: int
    is_alloc: bool
    start: int
    end: int


def _moves_of(trace: Trace) -> list[_Move]:
    kinds = (Action.SEGMENT_ALLOC, Action.SEGMENT_FREE)
    rows = np.flatnonzero(any_of(trace.action, kinds) & (trace.size > 0))[:MOST_MOVES]
    columns = (column[rows].tolist() for column in (trace.action, trace.addr, trace.size))
    return [
        _Move(entry, action == Action.SEGMENT_ALLOC, start, start + round_up(size, PAGE))
        for entry, action, start, size in zip(rows.tolist(), *columns, strict=True)
    ]


def _read_simple_policy(
    policy: str, moves: Sequence[_Move], start: Sequence[SegmentState]
) -> Addresses:
    allocs = [move for move in moves if move.is_alloc]
    base = allocs[0].start if allocs else 0
    device = Device(UNLIMITED_DEVICE, policy=policy, base_address=base)
    for segment in start:
        device.adopt(segment.address, segment.total_size)
    placed = {segment.address: segment.address for segment in start}
    n_right = 0
    for move in moves:
        if move.is_alloc:
            address = device.reserve_address(move.end - move.start)
            n_right += address == move.start
            placed[move.start] = address
        elif move.start in placed:
            device.release_address(placed.pop(move.start))
    return Addresses(policy, n_segments=len(allocs), n_right=n_right)


def _looks_like_driver(trace: Trace, moves: Sequence[_Move], start: Sequence[SegmentState]) -> bool:
    maps = trace.addr[any_of(trace.action, (Action.SEGMENT_MAP,))]
    if len(maps):
        return int(maps.min()) == DRIVER_RANGES
    known = {move.start: move.end for move in moves if move.is_alloc}
    known |= {
        segment.address: segment.address + round_up(segment.total_size, PAGE)
        for segment in (*start, *trace.segments)
        if not segment.is_expandable
    }
    ends = set(known.values())
    runs = [address for address in known if address not in ends]
    n_aligned = sum(address % ADDRESS_CHUNK == 0 for address in runs)
    return len(runs) >= LEAST_RUNS and n_aligned >= ALIGNED_SHARE * len(runs)


class _DriverReading:
    """Replay of recorded segments in an `Arena`, the model of the driver's address space.

    If the arena would place a segment at another address than recorded, this object stores an event
    that explains the recorded address, and applies it to the arena.

    shown: result of an earlier reading of the same segments, whose events are applied first; None
        for the first reading.
    """

    def __init__(self, start: Sequence[SegmentState], shown: Addresses | None = None) -> None:
        self._arena: Arena | None = None
        self._to_come: list[DatedEvent] = []
        if shown is not None:
            self._to_come = list(reversed(shown.events))
            self._arena = None if shown.base is None else Arena(shown.base)
        self._events: list[DatedEvent] = []
        self._fresh: dict[int, int] = {}  # start -> end of chunks created for a segment
        self._since: dict[int, int] = {}  # start of a chunk -> entry before which it existed
        self._taken: list[tuple[int, int]] = []
        self._freed: list[_Move] = []  # since the last segment
        self._live: dict[int, int] = {}  # start -> end
        self._entry = self._n = self.n_right = 0
        for segment in sorted(start, key=lambda each: each.address):
            if not segment.is_expandable:
                end = segment.address + round_up(segment.total_size, PAGE)
                self._begin(end).adopt(segment.address, end)
                self._live[segment.address] = end
        self._starts_mid_run = bool(self._live)

    @property
    def n_chunks(self) -> int:
        gaps = sum(dated.event.kind is _GAP for dated in self._events)
        return len(self._fresh) + gaps

    def read(self, move: _Move) -> None:
        if not move.is_alloc:
            self._freed.append(move)
            return
        is_first = self._arena is None  # nothing predicts the first segment
        arena = self._begin(move.end)
        self._entry = self._freed[0].entry if self._freed else move.entry
        self._apply_events_up_to(arena, self._entry)
        if not is_first and self._is_after_others(arena, move.start):
            self._store_foreign_chunk(arena, move.start)
        for freed in self._freed:
            self._apply_events_up_to(arena, freed.entry)
            arena.release(freed.start, self._live.pop(freed.start, freed.start))
        self._freed.clear()
        self._entry = move.entry
        self._apply_events_up_to(arena, move.entry)
        size = move.end - move.start
        expected, is_hole = arena.expected(size)
        if expected == move.start and not is_first:
            self.n_right += 1
            if not is_hole:
                self._note_chunk(move.start, move.start + round_up(size, ADDRESS_CHUNK))
        else:
            self._explain(arena, move, is_hole=is_hole)
        arena.adopt(move.start, move.end)
        self._live[move.start] = move.end
        self._n += 1

    def result(self) -> Addresses:
        base = next(iter(self._fresh.values()), None)
        if base is None:
            spaces = [each.event.start for each in self._events if each.event.kind is not _TAKEN]
            base = min(spaces, default=None)
        return Addresses(
            "driver",
            None if self._starts_mid_run else base,
            tuple(sorted(_joined(self._events), key=lambda dated: dated.entry)),
            self._n,
            self.n_right,
        )

    # -- parts --------------------------------------------------------------------------

    def _begin(self, end: int) -> Arena:
        if self._arena is None:
            self._arena = Arena(round_up(end, ADDRESS_CHUNK))
        return self._arena

    def _apply_events_up_to(self, arena: Arena, entry: int) -> None:
        while self._to_come and self._to_come[-1].entry <= entry:
            arena.apply(self._to_come.pop().event)

    def _is_after_others(self, arena: Arena, start: int) -> bool:
        chunk = start // ADDRESS_CHUNK * ADDRESS_CHUNK
        is_new = bool(self._fresh) and arena.chunk_at(start) is None and chunk < arena.lowest
        return is_new and chunk < start and self._foreign_chunk_below(arena, start) is None

    def _store_foreign_chunk(self, arena: Arena, start: int) -> None:
        # No hole was large enough for the memory below `start`, before the pending frees.
        chunk = start // ADDRESS_CHUNK * ADDRESS_CHUNK
        self._note_taken([*arena.close_holes(start - chunk), (chunk, start)])
        arena.adopt(chunk, start)
        self._note_chunk(chunk, round_up(start, ADDRESS_CHUNK))

    def _note_chunk(self, start: int, end: int) -> None:
        self._fresh[start] = end
        self._since[start] = self._entry

    def _note(self, kind: AddressEventKind, start: int, end: int, entry: int | None = None) -> None:
        entry = self._entry if entry is None else entry
        self._events.append(DatedEvent(entry, AddressEvent(kind, start, end)))

    def _note_taken(self, taken: Sequence[tuple[int, int]]) -> None:
        for start, end in taken:
            self._taken.append((start, end))
            self._note(_TAKEN, start, end)

    def _explain(self, arena: Arena, move: _Move, *, is_hole: bool) -> None:
        # is_hole: the arena would have placed the segment in a hole.
        start, end = move.start, move.end
        self._free_taken_ranges(arena, start, end)
        if arena.is_free(start, end):
            self._note_taken(arena.close_holes(end - start, start))
        elif (chunk := self._larger_foreign_chunk(arena, start)) is not None:
            self._widen(arena, chunk, end)
        elif (chunk := self._foreign_chunk_below(arena, start)) is not None:
            self._widen(arena, chunk, end)
            self._note_taken(arena.close_holes(end - start, start))
        elif start % ADDRESS_CHUNK == 0:
            if is_hole:
                self._note_taken(arena.close_holes(end - start))
            arena.close_gaps(end - start, start)
            reach = start + round_up(end - start, ADDRESS_CHUNK)
            if start >= arena.lowest:
                self._note(_GAP, start, reach)
                self._since[start] = self._entry
            else:
                self._note_chunk(start, reach)
        else:
            self._note_taken(arena.close_holes(end - start, start))
            reach = round_up(end, ADDRESS_CHUNK)
            self._note(_HOLE, start, reach)
            self._since[start] = self._entry
            arena.offer(start, reach)

    def _larger_foreign_chunk(self, arena: Arena, start: int) -> int | None:
        # The chunk contains `start`, or was created for something else and ends at `start`: a new
        # chunk would be at the end of the gap, not at its beginning.
        if (chunk := arena.chunk_at(start)) is not None:
            return chunk[0]
        chunk = arena.chunk_at(start - PAGE)
        is_of_others = chunk is not None and self._is_hole(chunk[0])
        return chunk[0] if chunk is not None and is_of_others else None

    def _foreign_chunk_below(self, arena: Arena, start: int) -> int | None:
        # The chunk is assumed to reach `start`, with the memory in between in use.
        chunk = arena.last_chunk_below(start)
        if chunk is None or not self._is_hole(chunk[0]):
            return None
        return chunk[0] if start - chunk[1] <= chunk[1] - chunk[0] else None

    def _is_hole(self, chunk: int) -> bool:
        found = (each.event for each in self._events if each.event.kind is _HOLE)
        return any(event.start == chunk for event in found)

    def _widen(self, arena: Arena, chunk: int, end: int) -> None:
        reach = arena.widen_chunk(chunk, round_up(end, ADDRESS_CHUNK))
        self._fresh.pop(chunk, None)
        self._events = [
            each for each in self._events if each.event.start != chunk or each.event.kind is _TAKEN
        ]
        self._note(_HOLE, chunk, reach, self._since.setdefault(chunk, self._entry))

    def _free_taken_ranges(self, arena: Arena, start: int, end: int) -> None:
        for taken in [each for each in self._taken if each[0] < end and start < each[1]]:
            self._taken.remove(taken)
            arena.release(*taken)


def _joined(events: Sequence[DatedEvent]) -> Iterator[DatedEvent]:
    last: DatedEvent | None = None
    for dated in events:
        if dated.event.kind is not _GAP:
            yield dated
        elif last is not None and dated.event.end == last.event.start:
            last = replace(last, event=replace(last.event, start=dated.event.start))
        else:
            if last is not None:
                yield last
            last = dated
    if last is not None:
        yield last
