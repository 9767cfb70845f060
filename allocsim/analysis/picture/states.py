"""Lifetimes of blocks and segments in a replay, and the states of memory that follow from them.

A lifetime is a range of entries: the block or segment exists after entry e if `born <= e < end`.
`born` is -1 if it existed before the recording, and `end` is `n_entries` if it exists after the
last entry.  A request that failed in the recording is left out, even if it succeeds in the replay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import any_of
from allocsim._repr import Shown
from allocsim.core import MIN_BLOCK_SIZE, SMALL_BUFFER
from allocsim.errors import RecordingError
from allocsim.export import History, columns_of
from allocsim.ownership import Blocks, moment_of_state, paired, rows_of
from allocsim.recording import BLOCK_ACTIONS, Action, Recording, Trace, refuse_contradictions
from allocsim.state import (
    ALLOCATED,
    DEFAULT_POOL,
    INACTIVE,
    PENDING,
    BlockState,
    PoolId,
    SegmentState,
)
from allocsim.units import KIB, MIB, format_size

_Column = NDArray[np.int64]
_Addresses = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, eq=False)
class SegmentLives:
    """Lifetimes of segments, and of mapped ranges of expandable segments.

    born: entry at which the memory was reserved; -1 if before the recording.
    died: entry at which it was released to the driver; `Lives.n_entries` if it never was.
    pool: index into `Lives.pools`; -1 for the default pool.
    """

    address: _Addresses
    size: _Column
    stream: NDArray[np.uint64]
    born: _Column
    died: _Column
    pool: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.address)


@dataclass(frozen=True, slots=True, eq=False)
class Lives:
    """Lifetimes of the blocks and segments of one device.

    n_entries: number of replayed history entries.
    pools: ids of the private pools; blocks and segments refer to them by index.
    """

    blocks: Blocks
    segments: SegmentLives
    n_entries: int
    pools: tuple[PoolId, ...] = ()


def lives_of(history: History, trace: Trace, stopped_at: int | None = None) -> Lives:
    """Return the lifetimes of blocks and segments in a replay of `trace`.

    history: entries that the replay wrote.
    stopped_at: last entry of a replay that ended early; None if it did not end early.
    """
    n_entries = len(trace) if stopped_at is None else stopped_at + 1
    blocks, segments = _blocks(history, trace, n_entries), _segments(history, n_entries)
    return Lives(blocks, segments, n_entries, history.pools)


def _blocks(history: History, trace: Trace, n_entries: int) -> Blocks:
    rows = np.flatnonzero(any_of(history.action, BLOCK_ACTIONS))
    entry = history.entry[rows]
    then = (history.action, history.address, history.block_size, history.size, history.stream)
    recorded = [column[rows] for column in (*then, history.pool)]
    older = rows_of(history.start, history.pools)
    older[6][:] = -1  # the stacks of older blocks are not shown
    columns = zip(older, [*recorded, trace.frames[entry], entry], strict=True)
    found = paired([*map(np.concatenate, columns)], n_entries, history.pools)
    return found.take(np.flatnonzero(found.size > 0))


_TAKES = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
_GIVES = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)


def _segments(history: History, n_entries: int) -> SegmentLives:
    number = {pool: i for i, pool in enumerate(history.pools)}
    held = {
        s.address: (s.total_size, s.stream, -1, number.get(s.pool_id, -1)) for s in history.start
    }
    ended: list[tuple[int, int, int, int, int, int]] = []
    rows = np.flatnonzero(any_of(history.action, (*_TAKES, *_GIVES)))
    columns = (history.action, history.address, history.size, history.stream, history.entry,
               history.pool)  # fmt: skip
    for row in zip(*(column[rows].tolist() for column in columns), strict=True):
        action, address, size, stream, entry, pool = row
        if action in _TAKES:
            held[address] = (size, stream, entry, pool)
            continue
        end, touched = address + size, [address]
        if held.get(address, (-1,))[0] != size:
            touched = [at for at, (n, _, _, _) in held.items() if at < end and at + n > address]
        for at in touched:
            length, stream, born, pool = held.pop(at)
            first, last = max(at, address), min(at + length, end)
            ended.append((first, last - first, stream, born, entry, pool))
            if at < first:
                held[at] = (first - at, stream, born, pool)
            if last < at + length:
                held[last] = (at + length - last, stream, born, pool)
    ended += [
        (at, size, stream, born, n_entries, pool) for at, (size, stream, born, pool) in held.items()
    ]
    ended.sort(key=lambda row: (row[3], row[0]))
    dtypes = (np.uint64, np.int64, np.uint64, np.int64, np.int64, np.int32)
    return SegmentLives(*columns_of(zip(*ended, strict=True), dtypes))


@dataclass(frozen=True, slots=True)
class Instant:
    """Segments of a device after one entry, with their blocks, in order of address.

    entry: entry number; None for a recording without entries, which contains only this state.
    """

    entry: int | None
    segments: tuple[SegmentState, ...]

    @property
    def reserved(self) -> int:
        return sum(segment.total_size for segment in self.segments)

    def held(self, state: str) -> int:
        return sum(segment.held(state) for segment in self.segments)


def instant_of(lives: Lives, entry: int, *, is_expandable: bool) -> Instant:
    """Return the segments and blocks that exist after `entry`.

    is_expandable: True to join adjacent mapped ranges into one expandable segment.
    """
    segments, blocks = lives.segments, lives.blocks
    there = np.flatnonzero((segments.born <= entry) & (entry < segments.died))
    there = there[np.argsort(segments.address[there])]
    ranges: list[tuple[int, int, int, int]] = []
    places = (segments.address, segments.size, segments.stream, segments.pool)
    for address, size, *kind in zip(*(c[there].tolist() for c in places), strict=True):
        stream, pool = kind
        joins = ranges and is_expandable and ranges[-1][2:] == (stream, pool)
        if joins and sum(ranges[-1][:2]) == address:
            ranges[-1] = (ranges[-1][0], ranges[-1][1] + size, stream, pool)
        else:
            ranges.append((address, size, stream, pool))
    used = np.flatnonzero((blocks.born <= entry) & (entry < blocks.completed))
    used = used[np.argsort(blocks.address[used])]
    columns = (blocks.address, blocks.size, blocks.requested, blocks.freed)
    in_use = [
        BlockState(address, size, requested, ALLOCATED if entry < freed else PENDING)
        for address, size, requested, freed in zip(
            *(c[used].tolist() for c in columns), strict=True
        )
    ]
    firsts = np.array([start for start, *_ in ranges], dtype=np.uint64)
    starts = np.searchsorted(blocks.address[used], firsts)
    cuts = [*starts.tolist(), len(in_use)]
    return Instant(
        entry,
        tuple(
            SegmentState(
                address=start,
                total_size=size,
                stream=stream,
                is_small=not is_expandable and size == SMALL_BUFFER,
                pool_id=lives.pools[pool] if pool >= 0 else DEFAULT_POOL,
                is_expandable=is_expandable,
                blocks=tuple(_tiled(start, size, in_use[first:last])),
            )
            for (start, size, stream, pool), (first, last) in zip(
                ranges, pairwise(cuts), strict=True
            )
        ),
    )


def _tiled(start: int, size: int, used: list[BlockState]) -> list[BlockState]:
    at, found = start, []
    for block in used:
        if block.address > at:
            found.append(BlockState(at, block.address - at, 0, INACTIVE))
        found.append(block)
        at = block.end
    if at < start + size:
        found.append(BlockState(at, start + size - at, 0, INACTIVE))
    return found


@dataclass(frozen=True, slots=True, eq=False)
class MemoryCurve:
    """Curves of memory over a replay: item e of each curve is the number of bytes after entry e.

    active: bytes of allocated blocks, and of freed blocks that wait for other streams.
    ideal: highest sum of live requests up to this entry, each rounded up to 512 bytes.  An
        allocator that returns no memory to the driver cannot reserve less.
    driver_takes: entries at which PyTorch takes memory from the driver; not a curve.
    driver_gives: entries at which PyTorch releases memory to the driver; not a curve.
    """

    reserved: _Column
    active: _Column
    allocated: _Column
    requested: _Column
    ideal: _Column
    driver_takes: _Column
    driver_gives: _Column

    def __len__(self) -> int:
        return len(self.reserved)


def memory_curve(lives: Lives) -> MemoryCurve:
    blocks, segments, n = lives.blocks, lives.segments, lives.n_entries
    needed = -(-blocks.requested // MIN_BLOCK_SIZE) * MIN_BLOCK_SIZE
    in_use = _level(blocks.born, blocks.completed, needed, n)
    start = int(needed[blocks.born < 0].sum())
    return MemoryCurve(
        reserved=_level(segments.born, segments.died, segments.size, n),
        active=_level(blocks.born, blocks.completed, blocks.size, n),
        allocated=_level(blocks.born, blocks.freed, blocks.size, n),
        requested=_level(blocks.born, blocks.freed, blocks.requested, n),
        ideal=np.maximum(np.maximum.accumulate(in_use), start) if n else in_use,
        driver_takes=np.sort(segments.born[segments.born >= 0]),
        driver_gives=np.sort(segments.died[segments.died < n]),
    )


def _level(born: _Column, end: _Column, size: _Column, n: int) -> _Column:
    moved = np.zeros(n + 1, dtype=np.int64)
    np.add.at(moved, np.maximum(born, 0), size)
    np.subtract.at(moved, np.clip(end, 0, n), size)
    return np.cumsum(moved)[:n]


_LIMITS = (16 * KIB, MIB, 10 * MIB, 50 * MIB, 200 * MIB)


def _text(size: int) -> str:
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"


CLASS_NAMES = (*(f"up to {_text(limit)}" for limit in _LIMITS), f"above {_text(_LIMITS[-1])}")


def class_of(size: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.searchsorted(np.array(_LIMITS), size, side="left")


@dataclass(frozen=True, slots=True, eq=False)
class BlockSizes:
    """Histograms of block sizes, over a run and at one moment.

    edges: sizes at the boundaries of the bins: powers of two from 512 bytes, the size of the
        smallest block.
    handed_out: number of blocks in each bin that were allocated over the run; without entries,
        number of blocks in use in the recorded state.
    used_bytes: bytes in each bin, at the moment, of blocks that are allocated or wait for a stream.
    free_bytes: bytes in each bin, at the moment, of free blocks.
    """

    edges: _Column
    handed_out: _Column
    used_bytes: _Column
    free_bytes: _Column


def block_sizes(lives: Lives | None, instant: Instant) -> BlockSizes:
    there = [block for segment in instant.segments for block in segment.blocks]
    used = np.array([block.size for block in there if block.state != INACTIVE], dtype=np.int64)
    free = np.array([block.size for block in there if block.state == INACTIVE], dtype=np.int64)
    handed_out = used if lives is None else lives.blocks.size
    most = max([MIN_BLOCK_SIZE, *(int(s.max(initial=0)) for s in (handed_out, used, free))])
    n_bins = (most // MIN_BLOCK_SIZE).bit_length()
    edges = MIN_BLOCK_SIZE << np.arange(n_bins + 1, dtype=np.int64)
    return BlockSizes(
        edges=edges,
        handed_out=np.histogram(handed_out, edges)[0].astype(np.int64),
        used_bytes=np.histogram(used, edges, weights=used)[0].astype(np.int64),
        free_bytes=np.histogram(free, edges, weights=free)[0].astype(np.int64),
    )


STILL_KINDS = {
    "live": "requested and in use",
    "slack": "in live blocks beyond the requested size",
    "pending": "freed, but waiting for work on another stream",
    "private_pool": "idle, but kept for a private pool (a CUDA graph, a MemPool)",
    "interleaved": "idle between live blocks of a segment",
    "whole_segments": "idle in whole segments, which the allocator can release",
}
"""Dictionary from the name of each use of reserved memory to its description.

It is for snapshots without entries.
"""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Still(Shown):
    """State of one device, read from a snapshot without entries.

    instant: segments and blocks of the device.
    trace: recorded segments of the device.
    others: device numbers of the snapshot's other devices.
    """

    path: str
    trace: Trace
    instant: Instant
    others: tuple[int, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Empty tuple: a recorded state needs no warnings, unlike a `Picture`."""
        return ()

    def headline(self) -> str:
        held = f"{format_size(self.instant.reserved)} in {len(self.instant.segments):,} segments"
        return f"{self.path.rsplit('/', 1)[-1]}, device {self.trace.device}: {held}"

    def figures_shown(self) -> Iterator[tuple[str, str]]:
        for kind, size in self.kinds.items():
            yield STILL_KINDS[kind], format_size(size)

    def at(self, moment: str | int | None = None) -> Instant:
        """Return the state; `moment` must be None or "end", because there is one state only.

        Raises RecordingError for another moment.
        """
        moment_of_state(self.path, moment)
        return self.instant

    @property
    def kinds(self) -> dict[str, int]:
        """Dictionary from each use of reserved memory (the keys of `STILL_KINDS`) to its bytes."""
        kinds: Counter[str] = Counter(dict.fromkeys(STILL_KINDS, 0))
        for segment in self.instant.segments:
            idle = "whole_segments" if segment.is_idle else "interleaved"
            idle = idle if segment.pool_id == DEFAULT_POOL else "private_pool"
            for block in segment.blocks:
                if block.state == ALLOCATED:
                    asked = block.requested_size or block.size  # 0 if not recorded
                    kinds["live"] += asked
                    kinds["slack"] += block.size - asked
                else:
                    kinds["pending" if block.state == PENDING else idle] += block.size
        return dict(kinds)


def still_of(recording: Recording, device: int) -> Still:
    """Return the final state of a device in a snapshot.

    Raises RecordingError if the device is missing or its entries contradict its segments.
    """
    trace = recording.device(device)
    refuse_contradictions(recording)
    if not trace.segments:
        raise RecordingError(recording.path, f"device {device} holds no segments")
    others = tuple(each.device for each in recording.devices if each.device != device)
    return Still(recording.path, trace, Instant(None, trace.segments), others)
