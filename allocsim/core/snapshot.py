"""History, snapshot and summary of an allocator, in the forms of torch.cuda.memory.

- The history is a list of entries, one for each action, in upstream's order.
- In a snapshot, a segment is one cudaMalloc, or a maximal mapped range of an expandable segment.
  Segments are in address order, and blocks cover them without gaps.  The requested_size of a free
  block is the size of the last request that the same `Block` object served.
- In the table of `memory_summary`, most statistics have three rows: all, large pool and small pool.
  In each column, these share one unit: the smallest that makes the number for `all` less than
  768 * 1024 (750,000 for counts).  Values are converted by integer division.

Source: semantics 3, 6.1 to 6.3, 6.5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from allocsim.state import (
    ALLOCATED,
    DEFAULT_POOL,
    INACTIVE,
    PENDING,
    BlockState,
    PoolId,
    SegmentState,
)

if TYPE_CHECKING:
    from allocsim.core.block import Block
    from allocsim.core.find_split_merge import Heap


class TraceEntry(NamedTuple):
    """One action of the allocator.

    action: name in a snapshot: "alloc", "free_requested", "free_completed", "segment_alloc",
        "segment_free", "segment_map", "segment_unmap", "oom" or "snapshot".
    address: address of the block or segment; free bytes of the device if the action is "oom".
    size: bytes; the requested size if the action concerns a block.
    """

    action: str
    address: int
    size: int
    stream: int
    pool_id: PoolId = DEFAULT_POOL


class Work(Enum):
    """Activity of the allocator that causes a history entry, such as garbage collection."""

    REQUEST = "request"  # serving a call of the program
    POLL = "poll"  # completing frees whose events have passed
    WAIT = "wait"  # waiting for all events
    GARBAGE_COLLECTION = "garbage collection"
    RELEASE_OVERSIZE = "release oversize"
    RELEASE_CACHED = "release cached"  # empty_cache, or the same before a retry
    DRIVER = "driver"  # obtaining memory from the driver


class Witnessed(NamedTuple):
    """History entry with the state of the allocator when it was recorded.

    work: activity of the allocator that caused the entry.
    reserved, device_free: bytes reserved by the allocator, and free on the device.
    """

    entry: TraceEntry
    work: Work
    reserved: int
    device_free: int


_ENTRY_DEFAULTS: dict[str, Any] = {"compile_context": "N/A", "user_metadata": ""}


def get_all_blocks(heap: Heap) -> Iterator[Block]:
    # Active blocks are in no pool, and pools list all free blocks.
    yield from heap.active
    for pool in heap.pools:
        yield from pool


def segments(heap: Heap) -> tuple[SegmentState, ...]:
    """Return every segment with its blocks, in address order.

    Mirrors: snapshot
    """
    # Each mapped range of an expandable segment is shown as a segment.
    heads = [block for block in get_all_blocks(heap) if block.prev is None or not block.prev.mapped]
    return tuple(_segment(head) for head in sorted(heads, key=lambda block: block.ptr))


def _segment(head: Block) -> SegmentState:
    blocks = []
    size = 0
    block: Block | None = head
    while block is not None and block.mapped:
        blocks.append(BlockState(block.ptr, block.size, block.requested_size, _state(block)))
        size += block.size
        block = block.next
    return SegmentState(
        address=head.ptr,
        total_size=size,
        stream=head.stream,
        is_small=head.pool.is_small,
        pool_id=head.pool.id,
        is_expandable=head.expandable is not None,
        blocks=tuple(blocks),
    )


def _state(block: Block) -> str:
    if block.allocated:
        return ALLOCATED
    return PENDING if block.is_active else INACTIVE


def _segment_fields(segment: SegmentState, device: int) -> dict[str, Any]:
    return {
        "device": device,
        "address": segment.address,
        "total_size": segment.total_size,
        "allocated_size": segment.allocated_size,
        "active_size": segment.active_size,
        "requested_size": segment.requested_size,
        "stream": segment.stream,
        "segment_type": "small" if segment.is_small else "large",
        "segment_pool_id": segment.pool_id,
        "is_expandable": segment.is_expandable,
        "frames": [],
        "blocks": [_block_fields(block) for block in segment.blocks],
    }


def _block_fields(block: BlockState) -> dict[str, Any]:
    return {
        "address": block.address,
        "size": block.size,
        "requested_size": block.requested_size,
        "state": block.state,
        "frames": [],
    }


def memory_snapshot(heap: Heap, device: int) -> list[dict[str, Any]]:
    return [_segment_fields(segment, device) for segment in segments(heap)]


def snapshot(heap: Heap, device: int) -> dict[str, Any]:
    """Return the snapshot that the simulated release writes, and append an entry to the history.

    Each `time_us` is the number of its entry, because the model reads no clock.
    """
    listed = memory_snapshot(heap, device)
    # A snapshot has one list for each device; the devices before this one have no history.
    traces: list[list[dict[str, Any]]] = [[] for _ in range(device)]
    traces.append([_entry(heap, number, entry) for number, entry in enumerate(heap.trace or ())])
    parts: dict[str, Any] = {
        "segments": listed,
        "device_traces": traces,
        "allocator_settings": heap.config.settings(),
        "external_annotations": [],
        "host_segments": [],
        "host_traces": [],
    }
    if heap.trace is not None:
        # Upstream stores the active bytes as the size of this entry.
        active = sum(segment["active_size"] for segment in listed)
        heap.trace.append(TraceEntry("snapshot", 0, active, 0))
    return {key: parts[key] for key in heap.release.snapshot_keys}


def _entry(heap: Heap, number: int, entry: TraceEntry) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "action": entry.action,
        "device_free" if entry.action == "oom" else "addr": entry.address,
        "size": entry.size,
        "stream": entry.stream,
    }
    for key in heap.release.entry_fields:
        if key == "time_us":
            fields[key] = number
        elif key == "pool_id":
            fields[key] = entry.pool_id
        else:
            fields[key] = _ENTRY_DEFAULTS[key]
    return fields


_SINGLE = "-" * 75
_DOUBLE = "=" * 75
_SIZE_UNITS = ("B  ", "KiB", "MiB", "GiB", "TiB", "PiB")
_COUNT_UNITS = (" ", "K", "M")
_COLUMNS = ("current", "peak", "allocated", "freed")
_POOLS = (
    ("all", None),
    ("large_pool", "      from large pool"),
    ("small_pool", "      from small pool"),
)

_Cell = Callable[[int, float], str]
"""Function that writes a value as text; the second argument is the value that chooses the unit."""


def _scaled(value: int, guide: float, base: int, units: Sequence[str]) -> tuple[int, str]:
    unit = 0
    # As in torch.cuda.memory: the value is an integer, the value that chooses the unit a float.
    while unit + 1 < len(units) and guide >= 0.75 * base * base:
        unit += 1
        value //= base
        guide /= base
    return value, units[unit]


def _size_cell(value: int, guide: float) -> str:
    value, unit = _scaled(value, guide, 1024, _SIZE_UNITS)
    return f"{value:6d} {unit}"


def _count_cell(value: int, guide: float) -> str:
    value, unit = _scaled(value, guide, 1000, _COUNT_UNITS)
    return f"{value:7d} {unit} "


_ROWS: tuple[tuple[str, str, _Cell], ...] = (
    ("Allocated memory", "allocated_bytes", _size_cell),
    ("Active memory", "active_bytes", _size_cell),
    ("Requested memory", "requested_bytes", _size_cell),
    ("GPU reserved memory", "reserved_bytes", _size_cell),
    ("Non-releasable memory", "inactive_split_bytes", _size_cell),
    ("Allocations", "allocation", _count_cell),
    ("Active allocs", "active", _count_cell),
    ("GPU reserved segments", "segment", _count_cell),
    ("Non-releasable allocs", "inactive_split", _count_cell),
)
_OVERSIZE = (
    ("Oversize allocations", "oversize_allocations"),
    ("Oversize GPU segments", "oversize_segments"),
)


def memory_summary(stats: Mapping[str, int], device: int) -> str:
    oversize = [_row(title, stats, key, _count_cell) for title, key in _OVERSIZE]
    lines = [
        _DOUBLE,
        f"{'PyTorch CUDA memory summary, device ID ':>57}{device:<18}",
        _SINGLE,
        f"{'CUDA OOMs: ':>23}{stats['num_ooms']:<12} |"
        f"{'cudaMalloc retries: ':>28}{stats['num_alloc_retries']:<8}  ",
        _DOUBLE,
        "        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  ",
        *(line for title, key, cell in _ROWS for line in _group(title, stats, key, cell)),
        *(line for row in oversize for line in (_SINGLE, row)),
        _DOUBLE,
    ]
    return "".join(f"|{line}|\n" for line in lines)


def _group(title: str, stats: Mapping[str, int], key: str, cell: _Cell) -> list[str]:
    rows = [
        _row(name or title, stats, f"{key}.{pool}", cell, guide=f"{key}.all")
        for pool, name in _POOLS
    ]
    return [_SINGLE, *rows]


def _row(
    title: str, stats: Mapping[str, int], key: str, cell: _Cell, guide: str | None = None
) -> str:
    cells = (
        cell(stats[f"{key}.{column}"], stats[f"{guide or key}.{column}"]) for column in _COLUMNS
    )
    return f" {title:<21} | {' | '.join(cells)} "
