"""State and history of an allocator in the form of torch.cuda.memory._snapshot().

A segment is one cudaMalloc, or a maximal mapped range of an expandable segment.  Segments are in
address order, and blocks cover them without gaps.  The requested_size of a free block is that of
the last request that its object served.  The "snapshot" entry is recorded after the traces were
copied.
Source: semantics 6.3, 6.5.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from allocsim.core.block import Block
from allocsim.core.heap import Heap
from allocsim.core.history import TraceEntry
from allocsim.state import ALLOCATED, INACTIVE, PENDING, BlockState, SegmentState

_ENTRY_DEFAULTS: dict[str, Any] = {"compile_context": "N/A", "user_metadata": ""}


def get_all_blocks(heap: Heap) -> Iterator[Block]:
    """Yield every mapped block of the device, in no particular order."""
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
    """Return the list `segments` of a snapshot of device number `device`."""
    return [_segment_fields(segment, device) for segment in segments(heap)]


def snapshot(heap: Heap, device: int) -> dict[str, Any]:
    """Return the snapshot with the keys of the release; append a `snapshot` entry to the history.

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
