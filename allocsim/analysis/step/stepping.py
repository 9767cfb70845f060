"""Run one request at a time and explain the allocator's decision.

An explanation uses only the states before and after the request, the entries that the request
added, and the work of the allocator that added each entry (`CachingAllocator.witness`).
"""

from __future__ import annotations

from collections.abc import Callable

from allocsim.analysis.step.decision import Decision, Moved, Observed, Request
from allocsim.analysis.step.rules import explain_request
from allocsim.core import CachingAllocator
from allocsim.errors import OutOfMemoryError
from allocsim.replaying import Walk
from allocsim.simulation import StepKind

__all__ = ["decide", "step", "walk_on"]

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
    """Send `request` to `allocator` and return the allocator's decision.

    Raises ValueError for an allocator without a history (`record_history=True` keeps one), and the
    errors of the request itself, except an out-of-memory error, which is part of the decision.
    """
    return decide(allocator, request, lambda: _ask(allocator, request))


def decide(allocator: CachingAllocator, request: Request, act: Callable[[], None]) -> Decision:
    """Call `act`, which makes `request`, and return the allocator's decision; see `step`."""
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
    """Call `act` and observe the allocator before and after the call."""
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
    """Run the next request of a recording.

    Return its entry and the allocator's decision; None at the end of the recording.
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
    oom = walk.take()
    if oom is not None:
        raise OutOfMemoryError(
            oom.message,
            requested_bytes=oom.requested_bytes or oom.rounded_bytes,
            rounded_bytes=oom.rounded_bytes,
            tried_bytes=oom.tried_bytes,
        )
