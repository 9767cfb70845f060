"""The state and history of an allocator as torch.cuda.memory._snapshot() gives them.

Rule: one segment a cudaMalloc, or a maximal mapped range of an expandable segment, in address
order; blocks cover it without gaps; inactive blocks show the stale requested_size of the object.
A snapshot's own entry is appended after its traces were copied.  Source: semantics 6.3, 6.5.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from allocsim.core.block import Block
from allocsim.core.heap import Heap, TraceEntry
from allocsim.core.pool import DEFAULT_POOL

__all__ = ["all_blocks", "segments", "snapshot"]

_ENTRY_DEFAULTS: dict[str, Any] = {"compile_context": "N/A", "user_metadata": ""}


def all_blocks(heap: Heap) -> Iterator[Block]:
    """Every mapped block of the device, in no particular order."""
    yield from heap.active
    for pool in heap.pools:
        yield from pool


def segments(heap: Heap, device: int) -> list[dict[str, Any]]:
    """The `segments` list: a dict for each, with its blocks."""
    heads = [block for block in all_blocks(heap) if block.prev is None or not block.prev.mapped]
    return [_segment(head, device) for head in sorted(heads, key=lambda block: block.ptr)]


def _segment(head: Block, device: int) -> dict[str, Any]:
    blocks = []
    block: Block | None = head
    while block is not None and block.mapped:
        blocks.append(block)
        block = block.next
    active = [block for block in blocks if block.is_active]
    return {
        "device": device,
        "address": head.ptr,
        "total_size": sum(block.size for block in blocks),
        "allocated_size": sum(block.size for block in blocks if block.allocated),
        "active_size": sum(block.size for block in active),
        "requested_size": sum(block.requested_size for block in active),
        "stream": head.stream,
        "segment_type": "small" if head.pool.is_small else "large",
        "segment_pool_id": head.pool.owner.id if head.pool.owner is not None else DEFAULT_POOL,
        "is_expandable": head.expandable is not None,
        "frames": [],
        "blocks": [_block(block) for block in blocks],
    }


def _block(block: Block) -> dict[str, Any]:
    state = "inactive"
    if block.allocated:
        state = "active_allocated"
    elif block.is_active:
        state = "active_pending_free"
    return {
        "address": block.ptr,
        "size": block.size,
        "requested_size": block.requested_size,
        "state": state,
        "frames": [],
    }


def snapshot(heap: Heap, device: int) -> dict[str, Any]:
    """The dict of this release.  Appends a `snapshot` entry to the history.

    `time_us` counts entries, since the model reads no clock.
    """
    listed = segments(heap, device)
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
