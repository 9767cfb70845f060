"""Segments for `seed`, made from a list of blocks."""

from __future__ import annotations

from collections.abc import Sequence

from allocsim.state import DEFAULT_POOL, BlockState, PoolId, SegmentState

__all__ = ["segment"]


def segment(  # noqa: PLR0917  (as the fields of a SegmentState)
    address: int,
    total_size: int,
    stream: int,
    is_small: bool,
    blocks: Sequence[tuple[int, int, str]],
    pool_id: PoolId = DEFAULT_POOL,
    *,
    is_expandable: bool = False,
) -> SegmentState:
    """Return a segment whose blocks (size, requested size, state) tile it from `address` on."""
    placed = []
    at = address
    for size, requested_size, state in blocks:
        placed.append(BlockState(at, size, requested_size, state))
        at += size
    return SegmentState(
        address, total_size, stream, is_small, pool_id, is_expandable, tuple(placed)
    )
