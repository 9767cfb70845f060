"""Determine the pool of each entry of a trace.

Since PyTorch 2.12 entries store the pool id.  In an older recording, the pool of an entry is that
of the final segment that contains its address (semantics 6.6).  If the segment was obtained after
the entry, the driver had reused the address, and the entry is assigned to the default pool.

For that, the address ranges of expandable segments are reconstructed.  Rule: a segment first maps
memory at its base, and later only at or before the end of its mapped part. It is destroyed when no
memory is mapped (semantics 4.1, 4.2, 4.6). So a mapping at any other address begins a new segment.
If a range was mapped before the first entry, parts of it may have been unmapped without an entry,
so such a segment is assumed to exist during the whole recording.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import any_of
from allocsim.recording.start_state import MappedRange, MappedRanges
from allocsim.recording.trace import Action, Trace
from allocsim.state import DEFAULT_POOL, PoolId, SegmentState


@dataclass(slots=True)
class Reservation:
    """Addresses [base, end) that an expandable segment has mapped at least once.

    first: entry that mapped memory at `base`; 0 if it was mapped before the first entry.
    mapped: bytes mapped after the entries that were read.
    is_older: True if it was mapped before the first entry.
    """

    base: int
    end: int
    first: int
    mapped: int
    is_older: bool = False


_Row = tuple[int, bool, int, int]
"""(entry, True for a map and False for an unmap, address, bytes)"""


def reservations_of(trace: Trace) -> list[Reservation]:
    """Return the expandable segments that exist after the last entry, with their addresses."""
    rows = _rows(trace)
    held = [
        Reservation(each.start, each.end, 0, each.end - each.start, is_older=True)
        for each in _mapped_before(trace, rows)
    ]
    for entry, maps, address, size in rows:
        found = [each for each in held if each.base <= address <= each.end]
        at = max(found, key=lambda each: each.base, default=None)
        if maps and at is None:
            held.append(Reservation(address, address + size, entry, size))
        elif maps and at is not None:
            at.end = max(at.end, address + size)
            at.mapped += size
        elif at is not None:
            at.mapped -= size
            if at.mapped <= 0 and not at.is_older:
                held.remove(at)
    return held


def _rows(trace: Trace) -> list[_Row]:
    of = np.flatnonzero(any_of(trace.action, (Action.SEGMENT_MAP, Action.SEGMENT_UNMAP)))
    columns = (trace.addr[of].tolist(), trace.size[of].tolist())
    maps = (trace.action[of] == Action.SEGMENT_MAP).tolist()
    return list(zip(of.tolist(), maps, *columns, strict=True))


def _mapped_before(trace: Trace, rows: list[_Row]) -> MappedRanges:
    ranges = MappedRanges()
    for segment in trace.segments:
        if segment.is_expandable:
            ranges.add(_mapped(segment.address, segment.total_size))
    for _, maps, address, size in reversed(rows):
        if maps:
            ranges.cut(address, address + size)
        else:
            ranges.add(_mapped(address, size))
    return ranges


def _mapped(address: int, size: int) -> MappedRange:
    return MappedRange(address, address + size, 0, DEFAULT_POOL, is_small=None)


@dataclass(frozen=True, slots=True)
class PoolColumn:
    """Pool of each entry.

    number: index of the entry's pool in `ids`; -1 for the default pool.
    """

    number: NDArray[np.int32]
    ids: tuple[PoolId, ...]


def pools_of(trace: Trace) -> PoolColumn:
    """Determine the private pool of each entry, from its pool id or its address."""
    if trace.pool_ids:
        default = [i for i, pool in enumerate(trace.pool_ids) if pool == DEFAULT_POOL]
        is_default = np.isin(trace.pool_id, default)
        return PoolColumn(np.where(is_default, np.int32(-1), trace.pool_id), trace.pool_ids)
    private = [segment for segment in trace.segments if segment.pool_id != DEFAULT_POOL]
    ids = tuple(dict.fromkeys(segment.pool_id for segment in private))
    number = np.full(len(trace), -1, dtype=np.int32)
    for first, base, end, pool_id in _held(trace, private):
        addr = trace.addr[first:]
        number[first:][(addr >= base) & (addr < end)] = ids.index(pool_id)
    number[any_of(trace.action, (Action.OOM,))] = -1  # its address is a number of bytes
    return PoolColumn(number, ids)


_Held = tuple[int, int, int, PoolId]
"""Addresses of a private pool: (entry from which it holds them, first address, end, pool)."""


def _held(trace: Trace, private: list[SegmentState]) -> Iterator[_Held]:
    obtained = np.flatnonzero(any_of(trace.action, (Action.SEGMENT_ALLOC,)))
    bases = trace.addr[obtained]
    for segment in private:
        if not segment.is_expandable:
            since = obtained[bases == segment.address]
            first = int(since[-1]) if len(since) else 0
            yield first, segment.address, segment.end, segment.pool_id
    mapped = [segment for segment in private if segment.is_expandable]
    for reservation in reservations_of(trace) if mapped else ():
        for segment in mapped:
            if segment.address < reservation.end and reservation.base < segment.end:
                yield reservation.first, reservation.base, reservation.end, segment.pool_id
                break
