"""Division of the device's memory at one state into kinds.

Every byte belongs to one kind, the first that applies in the order of `KINDS`.  Each kind is summed
separately and none is computed as a remainder, so the sum is a check (`unexplained_bytes`).
"""

from __future__ import annotations

from collections import Counter

from allocsim.analysis.explain.state_at_error import StateAtError
from allocsim.state import ALLOCATED, DEFAULT_POOL, PENDING, BlockState, SegmentState

__all__ = ["KINDS", "kinds_of", "unexplained_bytes"]

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
"""Uses of device memory, with descriptions.

If several apply to a byte, it counts for the first.
"""


def kinds_of(state: StateAtError) -> dict[str, int]:
    """Return the bytes of each use in `KINDS`, including uses with 0 bytes.

    Each use is summed separately and none is a remainder, so the sum can be checked.
    """
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


def unexplained_bytes(state: StateAtError) -> int:
    """Return the device's memory minus all uses in bytes, which is 0 unless the model is wrong."""
    return state.total_bytes - sum(kinds_of(state).values())


def _idle_kind(state: StateAtError, segment: SegmentState, block: BlockState) -> str:
    request = state.request
    if request.may_use(segment) and request.accepts(block.size):
        return "late"
    if segment.pool_id not in (DEFAULT_POOL, request.pool_id):
        return "private_pool"
    if segment.pool_id != request.pool_id:
        return "default_pool"
    if segment.stream != request.stream:
        return "other_stream"
    if segment.is_small != request.is_small:
        return "other_size_pool"
    return "whole_segments" if segment.is_idle else "interleaved"
