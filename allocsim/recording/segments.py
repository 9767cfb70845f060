"""Segments, blocks and allocator settings of a snapshot, and the pool of each entry.

A snapshot does not contain all settings.  Entries have a pool id only since PyTorch 2.12; in an
older recording, it is inferred from the final segments (semantics.md, sections 6.5, 6.6).
"""

# Since PyTorch 2.1 a block has an address and frames. In 2.0 its address follows from the sizes of
# the blocks before it in the segment, and its frames are in the first item of its `history`.
# An expandable segment first maps memory at its base, and later only at or before the end of its
# mapped part. It is destroyed when no memory is mapped (semantics 4.1, 4.2, 4.6). So a mapping at
# any other address begins a new segment. A segment that has mapped memory before the first entry is
# assumed to exist during the whole recording, because some of its memory may have been unmapped
# before that.

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import any_of
from allocsim.recording.fields import INT32_MAX, INT64_MAX, UINT64_MAX, Fields, describe
from allocsim.recording.start_state import MappedRange, MappedRanges
from allocsim.recording.trace import Action, Trace
from allocsim.state import (
    ALLOCATED,
    DEFAULT_POOL,
    INACTIVE,
    PENDING,
    BlockState,
    PoolId,
    SegmentState,
)

_STATES = {
    ALLOCATED: ALLOCATED,
    PENDING: PENDING,
    INACTIVE: INACTIVE,
    # Spelling of PyTorch's documentation, used by some other writers.
    "active_awaiting_free": PENDING,
}

_SUMS = ("allocated_size", "active_size", "requested_size")
"""Fields of a segment that must equal a sum over the segment's blocks."""


@dataclass(frozen=True, slots=True)
class WrongSum:
    """Field of a segment whose value differs from the sum over the segment's blocks.

    device, address: device index and address of the segment.
    name: "allocated_size", "active_size" or "requested_size".
    recorded: value in the file, as printable text.
    held: sum over the blocks, in bytes.
    """

    device: int
    address: int
    name: str
    recorded: str
    held: int

    @classmethod
    def from_plain(cls, fields: Fields) -> WrongSum:
        return cls(
            device=fields.integer("device", 0, INT32_MAX),
            address=fields.integer("address", 0, UINT64_MAX),
            name=fields.text("name"),
            recorded=fields.text("recorded"),
            held=fields.integer("held", 0, INT64_MAX),
        )


class SegmentReader:
    """Reader of the segments of a snapshot.

    stack: function that returns the stack index of a block or segment, given its fields.
    file_size: bytes of the file, which limit the number of segments and blocks.
    markers: fields in the segments read so far that old PyTorch releases do not write.
    """

    __slots__ = ("path", "markers", "wrong_sums", "_stack", "_budget", "_size")

    def __init__(self, path: str, stack: Callable[[Fields], int], file_size: int) -> None:
        self.path = path
        self.markers: set[str] = set()
        self.wrong_sums: list[WrongSum] = []
        self._stack = stack
        self._size = self._budget = file_size

    def read(self, segments: list[object]) -> dict[int, tuple[SegmentState, ...]]:
        """Return a dictionary from device index to the device's segments, sorted by address."""
        self._spend(Fields(self.path, "segments", {}), len(segments))
        devices: dict[int, list[SegmentState]] = {}
        for index, value in enumerate(segments):
            fields = Fields(self.path, f"segments[{index}]", value)
            device = fields.integer("device", 0, INT32_MAX)
            segment = self._segment(fields)
            devices.setdefault(device, []).append(segment)
            self._add_up(fields, device, segment)
        if segments:
            self.markers.add("segments")
        return {
            device: tuple(sorted(states, key=lambda state: state.address))
            for device, states in devices.items()
        }

    def _add_up(self, fields: Fields, device: int, segment: SegmentState) -> None:
        for name in _SUMS:
            if name not in fields:
                continue
            held: int = getattr(segment, name)
            if (recorded := fields.value(name, "a sum")) != held:
                wrong = WrongSum(device, segment.address, name, describe(recorded), held)
                self.wrong_sums.append(wrong)

    def _segment(self, fields: Fields) -> SegmentState:
        address = fields.integer("address", 0, UINT64_MAX)
        kind = fields.text("segment_type")
        if kind not in ("small", "large"):
            fields.wrong("segment_type", kind, "small or large")
        pool_id = DEFAULT_POOL
        if "segment_pool_id" in fields:
            self.markers.add("segment_pool_id")
            pool_id = fields.pool_id("segment_pool_id")
        return SegmentState(
            address=address,
            total_size=fields.integer("total_size", 0, INT64_MAX),
            stream=fields.integer("stream", 0, UINT64_MAX),
            is_small=kind == "small",
            pool_id=pool_id,
            is_expandable="is_expandable" in fields and fields.boolean("is_expandable"),
            blocks=self._blocks(fields, address),
            frames=self._stack(fields) if "frames" in fields else -1,
        )

    def _blocks(self, segment: Fields, address: int) -> tuple[BlockState, ...]:
        values = segment.items("blocks")
        self._spend(segment, len(values))
        blocks = []
        for index, value in enumerate(values):
            fields = Fields(self.path, f"{segment.where} block {index}", value)
            if "address" in fields:
                address = fields.integer("address", 0, UINT64_MAX)
            state = fields.text("state")
            if state not in _STATES:
                fields.wrong("state", state, f"one of {ALLOCATED}, {PENDING}, {INACTIVE}")
            size = fields.integer("size", 0, INT64_MAX)
            blocks.append(
                BlockState(
                    address=address,
                    size=size,
                    requested_size=fields.integer("requested_size", 0, INT64_MAX),
                    state=_STATES[state],
                    frames=self._frames(fields),
                )
            )
            address += size
        return tuple(blocks)

    def _frames(self, block: Fields) -> int:
        if "frames" in block:
            return self._stack(block)
        history = block.items("history") if "history" in block else []
        if not history:
            return -1
        newest = Fields(self.path, f"the history of {block.where}", history[0])
        return self._stack(newest) if "frames" in newest else -1

    def _spend(self, fields: Fields, count: int) -> None:
        self._budget -= count
        if self._budget < 0:
            fields.refuse(
                f"{fields.where} repeats itself beyond what the file's {self._size} bytes hold"
            )


_CONF = "PYTORCH_CUDA_ALLOC_CONF"
_LIMIT = "max_split_size"
_THRESHOLD = "garbage_collection_threshold"
_EXPANDABLE = "expandable_segments"
_DIVISIONS = "roundup_power2_divisions"
_KNOWN = (_CONF, _LIMIT, _THRESHOLD, _EXPANDABLE, _DIVISIONS)
_MAX_KEYS = 1000


@dataclass(frozen=True, slots=True)
class RecordedSettings:
    """Field `allocator_settings` of a snapshot (PyTorch 2.3 and later).

    conf: value of PYTORCH_CUDA_ALLOC_CONF; "" if it was not set.
    max_split_size: bytes; None for no limit.
    garbage_collection_threshold: share of the memory limit, 0 to 1; 0 if off.
    roundup_power2_divisions: pairs of interval in MiB and number of divisions.
    other: pairs of key and value for all other settings.
    """

    conf: str = ""
    max_split_size: int | None = None
    garbage_collection_threshold: float = 0.0
    expandable_segments: bool = False
    roundup_power2_divisions: tuple[tuple[int, int], ...] = ()
    other: tuple[tuple[str, int | float | str], ...] = ()

    def plain(self) -> dict[str, object]:
        return {
            _CONF: self.conf,
            _LIMIT: -1 if self.max_split_size is None else self.max_split_size,
            _THRESHOLD: self.garbage_collection_threshold,
            _EXPANDABLE: self.expandable_segments,
            **dict(self.other),
            _DIVISIONS: {str(mib): divisions for mib, divisions in self.roundup_power2_divisions},
        }


def read_settings(fields: Fields) -> RecordedSettings:
    """Return the settings in a snapshot, with PyTorch's defaults for missing keys.

    fields: the snapshot's `allocator_settings`.
    """
    limit = fields.integer(_LIMIT, -INT64_MAX - 1, UINT64_MAX) if _LIMIT in fields else -1
    return RecordedSettings(
        conf=fields.text(_CONF) if _CONF in fields else "",
        # No limit is written as the largest unsigned integer, or as that many MiB if vLLM sets
        # it.  Snapshots of some PyTorch releases write unsigned integers as signed.
        max_split_size=limit if 0 <= limit <= INT64_MAX else None,
        garbage_collection_threshold=fields.number(_THRESHOLD) if _THRESHOLD in fields else 0.0,
        expandable_segments=_EXPANDABLE in fields and fields.boolean(_EXPANDABLE),
        roundup_power2_divisions=_read_divisions(fields),
        other=_read_other(fields),
    )


def _read_divisions(fields: Fields) -> tuple[tuple[int, int], ...]:
    if _DIVISIONS not in fields:
        return ()
    table = Fields(fields.path, _DIVISIONS, fields.value(_DIVISIONS, "a dictionary"))
    pairs = []
    for key in table.keys()[:_MAX_KEYS]:
        if not key.isascii() or not key.isdigit() or len(key) > 10:
            table.refuse(f"{_DIVISIONS} has the key {describe(key)}, expected a number of MiB")
        pairs.append((int(key), table.integer(key, 0, INT32_MAX)))
    return tuple(sorted(pairs))


def _read_other(fields: Fields) -> tuple[tuple[str, int | float | str], ...]:
    values = {key: fields.value(key, "a setting") for key in fields.keys()[:_MAX_KEYS]}
    others = ((key, value) for key, value in values.items() if key not in _KNOWN)
    return tuple((key, value) for key, value in others if isinstance(value, int | float | str))


@dataclass(slots=True)
class Reservation:
    """Addresses [base, end) that an expandable segment has mapped, even if unmapped later.

    first: entry that mapped memory at `base`; 0 if it was mapped before the first entry.
    mapped: bytes that are mapped at the end of the recording.
    is_older: True if memory was mapped before the first entry.
    """

    base: int
    end: int
    first: int
    mapped: int
    is_older: bool = False


_Row = tuple[int, bool, int, int]
"""Entry that maps or unmaps memory: (entry, True if it maps, address, bytes)."""


def reservations_of(trace: Trace) -> list[Reservation]:
    """Return the addresses of the expandable segments that exist after the last entry."""
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
    """Pool of each entry of a trace.

    number: for each entry, the index of its pool in `ids`; -1 for the default pool.
    ids: ids of the pools.
    """

    number: NDArray[np.int32]
    ids: tuple[PoolId, ...]


def pools_of(trace: Trace) -> PoolColumn:
    """Return the private pool of each entry, from its pool id, or else from its address."""
    if trace.pool_ids:
        known = (-1 if pool == DEFAULT_POOL else i for i, pool in enumerate(trace.pool_ids))
        numbers = np.array([*known, -1], dtype=np.int32)  # last item: entries without a pool id
        return PoolColumn(numbers[trace.pool_id], trace.pool_ids)
    private = [segment for segment in trace.segments if segment.pool_id != DEFAULT_POOL]
    ids = tuple(dict.fromkeys(segment.pool_id for segment in private))
    number = np.full(len(trace), -1, dtype=np.int32)
    for first, base, end, pool_id in _held(trace, private):
        addr = trace.addr[first:]
        number[first:][(addr >= base) & (addr < end)] = ids.index(pool_id)
    number[any_of(trace.action, (Action.OOM,))] = -1  # the address of an oom is a number of bytes
    return PoolColumn(number, ids)


_Held = tuple[int, int, int, PoolId]
"""Addresses of a private pool: (entry that obtained them, start, end, pool id).

The entry is 0 if the pool had the addresses before the first entry.
"""


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
