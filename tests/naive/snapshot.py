"""Snapshot: segments by address, with each mapped range of an expandable segment as one entry.

Semantics 6.5.  Fields that need a stack trace are empty.
"""

from __future__ import annotations

import itertools
from typing import Any

from tests.naive.block import Block
from tests.naive.state import State

__all__ = ["snapshot"]

STATES = {
    "allocated": "active_allocated",
    "pending": "active_pending_free",
    "free": "inactive",
}


def mapped_ranges(state: State) -> list[list[Block]]:
    """Return runs of blocks without an unmapped one between them, by address."""
    runs = []
    for segment in state.segments:
        for gap, run in itertools.groupby(segment.blocks, lambda b: b.state == "unmapped"):
            if not gap:
                runs.append(list(run))
    return sorted(runs, key=lambda run: run[0].address)


def describe_block(block: Block) -> dict[str, Any]:
    return {
        "address": block.address,
        "size": block.size,
        "requested_size": block.requested_size,
        "state": STATES[block.state],
        "frames": [],
    }


def describe_segment(state: State, run: list[Block]) -> dict[str, Any]:
    segment = run[0].segment
    active = [b for b in run if b.state != "free"]
    return {
        "device": state.device,
        "address": run[0].address,
        "total_size": sum(b.size for b in run),
        "allocated_size": sum(b.size for b in run if b.state == "allocated"),
        "active_size": sum(b.size for b in active),
        "requested_size": sum(b.requested_size for b in active),
        "stream": segment.stream,
        "segment_type": "small" if segment.pool.small else "large",
        "segment_pool_id": (0, segment.pool.number),
        "is_expandable": segment.expandable,
        "frames": [],
        "blocks": [describe_block(b) for b in run],
    }


def settings(state: State) -> dict[str, Any]:
    """Return the settings in a snapshot (semantics 6.5)."""
    options = state.options
    most = options.max_split_size
    found: dict[str, Any] = {
        "PYTORCH_CUDA_ALLOC_CONF": options.text,
        "max_split_size": -1 if most is None else most,
        "garbage_collection_threshold": options.gc_threshold,
        "expandable_segments": options.expandable,
        "pinned_num_register_threads": options.registration_threads,
        "release_lock_on_cudamalloc": options.switches["release_lock_on_cudamalloc"],
        "pinned_use_cuda_host_register": options.switches["pinned_use_cuda_host_register"],
        "roundup_power2_divisions": {str(1 << i): d for i, d in enumerate(options.divisions)},
    }
    if state.minor >= 9:
        reuse = "graph_capture_record_stream_reuse"
        found[reuse] = options.switches[reuse]
    if state.minor >= 13:
        for name in ("max_round_threshold", "max_cached_size"):
            found[name] = options.pinned.get(name, -1)
    return found


def snapshot(state: State) -> dict[str, Any]:
    """Return the dictionary; record the `snapshot` entry after copying the trace."""
    found: dict[str, Any] = {
        "segments": [describe_segment(state, run) for run in mapped_ranges(state)],
        "device_traces": [[] for _ in range(state.device)] + [list(state.trace)],
    }
    if state.minor >= 3:
        found["allocator_settings"] = settings(state)
    if state.minor >= 5:
        found["external_annotations"] = []
    if state.minor >= 14:
        found["host_segments"] = []
        found["host_traces"] = []
    active = sum(segment["active_size"] for segment in found["segments"])
    state.note("snapshot", 0, active, 0)
    return found
