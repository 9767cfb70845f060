"""Run one request at a time in a simulated allocator, and explain the allocator's decision."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from allocsim.analysis.step.decision import (
    COLLECTION,
    MISS,
    POOLS,
    SPLIT,
    STREAMS,
    Candidate,
    Decision,
    Moved,
    Observed,
    Request,
    Rule,
    explain_malloc,
)
from allocsim.core import CachingAllocator
from allocsim.errors import OutOfMemoryError
from allocsim.replaying import Walk
from allocsim.simulation import StepKind
from allocsim.state import INACTIVE, BlockState, SegmentState

__all__ = ["Candidate", "Decision", "Moved", "Request", "step", "walk_on"]

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
    every = ((segment, block) for segment in segments for block in segment.blocks)
    return next((found for found in every if found[1].address <= address < found[1].end), None)


_ACTIONS = {
    StepKind.ALLOC: "malloc",
    StepKind.OOM: "malloc",
    StepKind.FREE: "free",
    StepKind.FREE_REQUEST: "request_free",
    StepKind.FREE_COMPLETE: "complete_free",
    StepKind.EMPTY_CACHE: "empty_cache",
}
_FREES = (StepKind.FREE, StepKind.FREE_REQUEST, StepKind.FREE_COMPLETE)


def step(allocator: CachingAllocator, request: Request) -> Decision:
    """Send `request` to `allocator`, and return an explanation of the allocator's decision.

    The allocator must keep a history (`record_history=True`); if it does not, ValueError is raised.
    An out-of-memory error is part of the decision; other errors of the request are raised.
    """
    return decide(allocator, request, lambda: _ask(allocator, request))


def decide(allocator: CachingAllocator, request: Request, act: Callable[[], None]) -> Decision:
    seen = _observe(allocator, request, act)
    rules, candidates = explain_request(allocator, seen)
    stats = ((key, seen.stats_before.get(key, 0), now) for key, now in seen.stats_after.items())
    return Decision(
        request=request,
        address=next((w.entry.address for w in seen.written if w.entry.action == "alloc"), None),
        error=None if seen.error is None else str(seen.error),
        rules=tuple(rules),
        candidates=tuple(candidates),
        entries=tuple(w.entry for w in seen.written),
        moved=tuple(Moved(key, before, now) for key, before, now in stats if now != before),
        before=tuple(s for s in seen.before if s not in seen.after),
        after=tuple(s for s in seen.after if s not in seen.before),
    )


def _observe(allocator: CachingAllocator, request: Request, act: Callable[[], None]) -> Observed:
    errors: list[OutOfMemoryError] = []

    def guarded() -> None:
        try:
            act()
        except OutOfMemoryError as error:
            errors.append(error)

    stats, before = allocator.memory_stats(), allocator.segments()
    written = allocator.witness(guarded)
    stats_after, after = allocator.memory_stats(), allocator.segments()
    error = errors[0] if errors else None
    return Observed(request, error, written, stats, stats_after, before, after)


def _ask(allocator: CachingAllocator, request: Request) -> None:
    action, pool = request.action, request.pool
    if action == "malloc":
        allocator.malloc(request.size, request.stream or 0)
    elif action == "record_stream":
        assert request.address is not None
        allocator.record_stream(request.address, request.stream or 0)
    elif action == "synchronize":
        allocator.synchronize(request.stream)
    elif action == "empty_cache":
        allocator.empty_cache()
    elif action in ("begin_allocate_to_pool", "end_allocate_to_pool", "release_pool"):
        getattr(allocator, action)(pool)
    elif action in ("set_per_process_memory_fraction", "set_allocator_settings"):
        getattr(allocator, action)(request.value)
    elif action in ("free", "request_free"):
        getattr(allocator, action)(request.address)
    else:
        raise ValueError(f"action {action!r} is not a request of an allocator")


def walk_on(walk: Walk) -> tuple[int, Decision] | None:
    """Send the next request of a recording to the allocator of `walk` and explain the decision.

    walk: replay of a recording that advances one request at a time.
    Returns (index of the request's history entry, decision); None at the end of the recording.
    """
    upcoming = walk.upcoming()
    if upcoming is None:
        return None
    entry, (kind, handle, size, stream) = upcoming
    request = Request(
        action=_ACTIONS[StepKind(kind)],
        size=size if kind in (StepKind.ALLOC, StepKind.OOM) else 0,
        address=walk.address_of(StepKind(kind), handle) if StepKind(kind) in _FREES else None,
        stream=stream,
    )
    return entry, decide(walk.allocator, request, lambda: _take(walk))


def _take(walk: Walk) -> None:
    oom = walk.run_step()
    if oom is not None:
        raise OutOfMemoryError(
            oom.message,
            requested_bytes=oom.requested_bytes or oom.rounded_bytes,
            rounded_bytes=oom.rounded_bytes,
            tried_bytes=oom.tried_bytes,
        )
