"""Explain the decisions of requests other than malloc, from the observed states and entries."""

from __future__ import annotations

from collections.abc import Iterator

from allocsim.analysis.step.decision import Candidate, Observed, Rule
from allocsim.analysis.step.malloc_rules import (
    COLLECTION,
    MISS,
    POOLS,
    SPLIT,
    STREAMS,
    explain_malloc,
)
from allocsim.core import CachingAllocator
from allocsim.state import INACTIVE, BlockState, SegmentState

__all__ = ["explain_request"]

_OF_POOLS = {
    "begin_allocate_to_pool": ("begin", "requests use private pool (0, {}) from now on"),
    "end_allocate_to_pool": ("end", "requests no longer use private pool (0, {})"),
    "release_pool": (
        "release",
        "private pool (0, {}) has one user less; its memory can be released after the last",
    ),
}


def explain_request(
    allocator: CachingAllocator, seen: Observed
) -> tuple[list[Rule], list[Candidate]]:
    """Return the rules that a request applied, and the free blocks that a malloc considered."""
    action = seen.request.action
    if action == "malloc":
        return explain_malloc(allocator, seen)
    if action in ("free", "request_free", "complete_free"):
        return [*_free(seen)], []
    if action == "empty_cache":
        return [*_empty_cache(seen)], []
    return [_other(seen)], []


def _other(seen: Observed) -> Rule:
    request = seen.request
    if request.action == "record_stream":
        text = f"its free will wait for the work queued on stream {request.stream} by then"
        return Rule("record_stream", STREAMS, text)
    if request.action == "synchronize":
        which = "every stream" if request.stream is None else f"stream {request.stream}"
        text = f"{which} has finished; the next malloc completes the pending frees"
        return Rule("synchronize", STREAMS, text)
    if request.action in _OF_POOLS:
        name, words = _OF_POOLS[request.action]
        return Rule(name, POOLS, words.format(request.pool))
    name = "conf" if request.action == "set_allocator_settings" else "fraction"
    return Rule(name, COLLECTION, f"{request.value} applies from the next request on")


def _free(seen: Observed) -> Iterator[Rule]:
    address = seen.request.address
    if address is None:
        yield Rule("nothing to free", SPLIT, "freeing None does nothing")
        return
    found = _holding(seen.before, address)
    if found is None:
        return
    block = found[1]
    if not any(w.entry.action == "free_completed" for w in seen.written):
        text = f"{block.size:,} bytes stay active until the streams that used them have finished"
        yield Rule("pending", STREAMS, text)
        return
    after = _holding(seen.after, address)
    if after is not None:
        yield from _merged(block, *after)


def _merged(block: BlockState, segment: SegmentState, whole: BlockState) -> Iterator[Rule]:
    before = block.address - whole.address
    behind = whole.size - before - block.size
    parts = [f"{before:,} before it"] if before else []
    parts += [f"{behind:,} behind it"] if behind else []
    if parts:
        text = f"{block.size:,} bytes join the free {' and '.join(parts)}: {whole.size:,} in all"
        yield Rule("merge", SPLIT, text)
    else:
        text = f"{block.size:,} bytes are free; neither neighbour is, so nothing merges"
        yield Rule("no merge", SPLIT, text)
    if whole.size == segment.total_size:
        yield Rule("cached", SPLIT, "the segment is wholly free and stays cached")


def _empty_cache(seen: Observed) -> Iterator[Rule]:
    waited = [w for w in seen.written if w.entry.action == "free_completed"]
    if waited:
        text = f"{len(waited):,} pending frees complete after a wait for every event"
        yield Rule("wait", STREAMS, text)
    given = [w.entry.size for w in seen.written if w.entry.action.startswith("segment_")]
    noun = "range" if len(given) == 1 else "ranges"
    yield Rule(
        "release all",
        MISS,
        f"{len(given):,} {noun} with {sum(given):,} bytes released to the driver",
    )
    kept = [s for s in seen.after if any(block.state == INACTIVE for block in s.blocks)]
    idle = sum(b.size for segment in kept for b in segment.blocks if b.state == INACTIVE)
    if idle:
        where = "segment with blocks" if len(kept) == 1 else "segments with blocks"
        text = f"{idle:,} bytes stay idle in {len(kept):,} {where} in use"
        yield Rule("kept", SPLIT, text)


def _holding(
    segments: tuple[SegmentState, ...], address: int
) -> tuple[SegmentState, BlockState] | None:
    """Return the segment and the block that contain `address`; None if there is no such block."""
    every = ((segment, block) for segment in segments for block in segment.blocks)
    return next((found for found in every if found[1].address <= address < found[1].end), None)
