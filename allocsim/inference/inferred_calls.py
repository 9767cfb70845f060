"""Possible causes of recorded releases of memory to the driver, as steps of a plan.

A gap consists of the entries between two steps of the program, such as segment_free.  An
explanation is a sequence of steps that may have caused these entries.  Evidence that distinguishes
the causes (semantics.md, sections 1.8, 2.4, 2.5):

- A request that found a free block was not refused (but see `_may_grow_in_place`).  If memory
  was returned to the driver just before the request, empty_cache returned it.
- The driver refuses a request only if the device is full.  It is not full below the highest
  reserved memory that the recording shows.
- The Python stack of an entry may name empty_cache.  If it does not, empty_cache is still possible:
  some versions of PyTorch write the stack of the request that obtained the memory.
- A refused request and empty_cache wait for every pending free.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from allocsim.core import (
    PAGE,
    UNLIMITED,
    ReplayAllocator,
    finds_free_block,
    free_blocks,
    returnable_bytes,
    would_serve,
)
from allocsim.inference.evidence import Facts, freed_block, has_just_set, is_limited, was_called
from allocsim.inference.gaps import Gap, RecordedEntry
from allocsim.recording import Action
from allocsim.simulation import Planned, StepKind
from allocsim.units import round_up


class Cause(Enum):
    """Cause of entries such as segment_free between two calls of the program, as text."""

    NOTHING = "no memory was released"
    EMPTY_CACHE = "empty_cache was called"
    DELETED_POOL = "a MemPool was deleted"
    REQUEST = "the request: refused at first, or a garbage collection"
    KNOWN = "known calls of the program, recorded or from hints"


@dataclass(frozen=True, slots=True)
class Explanation:
    """Steps of a plan that may have caused the entries of a gap, such as segment_free.

    cause: assumed cause of the entries, such as a call of empty_cache.
    refused: reserved bytes that a request would have caused if the full device had not refused it;
        None if the explanation has no refusal that shows the limit of the device.
    """

    cause: Cause
    steps: tuple[Planned, ...]
    refused: int | None = None


def plain_explanation(gap: Gap) -> Explanation:
    """Return the explanation of a gap that has only recorded entries and known calls."""
    late = gap.completed if gap.step is not None and gap.step.action == Action.OOM else ()
    early = () if late else gap.completed
    steps = (
        *_held_free(gap),
        *_completions(early),
        *_known_calls(gap),
        *_wait_order(late),
        *_final_step(gap, late),
    )
    return Explanation(Cause.KNOWN if gap.calls else Cause.NOTHING, steps)


def called_explanation(gap: Gap) -> Explanation:
    return _add_known_calls(_by_call(gap, (), Cause.EMPTY_CACHE), gap)


def known_explanation(gap: Gap) -> Explanation | None:
    if not gap.is_open:
        return plain_explanation(gap)
    return _by_known_calls(gap) if gap.calls and gap.released and _may_release(gap) else None


def explanations(gap: Gap, allocator: ReplayAllocator, facts: Facts) -> list[Explanation]:
    """Return the possible causes of the entries in `gap`, as steps of a plan, most likely first."""
    ways = _inferred(gap, allocator, facts)
    if not facts.empties:
        ways = [each for each in ways if each.cause is not Cause.EMPTY_CACHE]
    if gap.calls:
        ways = [_add_known_calls(each, gap) for each in ways]
        if gap.released and _may_release(gap):
            ways.insert(0, _by_known_calls(gap))
    return ways or [plain_explanation(gap)]


def _inferred(gap: Gap, allocator: ReplayAllocator, facts: Facts) -> list[Explanation]:
    step = gap.step
    # The request failed although the device had room, so a limit or another process caused it.
    had_room = step is not None and step.action == Action.OOM and step.size <= allocator.device.free
    if not gap.released and not had_room and not (gap.free and gap.is_request):
        return [plain_explanation(gap)]
    requests = list(_by_request(gap, allocator, facts))
    if not gap.released:
        plain = [plain_explanation(gap)]
        return requests + plain if had_room and facts.memory is not None else plain + requests
    # With a memory limit, a request may itself return memory; then that explanation comes first.
    calls = _by_calls(gap, allocator)
    if not gap.is_request or was_called(gap, allocator, facts):
        if not is_limited(gap, allocator):
            return calls + requests
        own = [each for each in requests if all(kind != StepKind.ROOM for kind, *_ in each.steps)]
        return own + calls + [each for each in requests if each not in own]
    return requests + calls


def _may_release(gap: Gap) -> bool:
    return any(call.kind in (StepKind.EMPTY_CACHE, StepKind.DELETE_POOL) for call in gap.calls)


def _by_known_calls(gap: Gap) -> Explanation:
    return _released_by(tuple(_known_calls(gap)), gap, Cause.KNOWN)


def _add_known_calls(explanation: Explanation, gap: Gap) -> Explanation:
    if explanation.cause is Cause.KNOWN:
        return explanation
    n_before = int(gap.free is not None)
    steps = explanation.steps
    return replace(explanation, steps=(*steps[:n_before], *_known_calls(gap), *steps[n_before:]))


def _known_calls(gap: Gap) -> Iterator[Planned]:
    for call in gap.calls:
        yield (call.kind, gap.last, 0, call.number, 0)


def _by_calls(gap: Gap, allocator: ReplayAllocator) -> list[Explanation]:
    # The deletion of a MemPool returns only the memory of that pool (semantics.md, section 5.7).
    first = next((i for i, entry in enumerate(gap.released) if entry.pool < 0), len(gap.released))
    empty = _by_call(gap, (), Cause.EMPTY_CACHE)
    if first == 0:
        return [empty]
    pools = tuple(dict.fromkeys(entry.pool for entry in gap.released[:first]))
    cause = Cause.DELETED_POOL if first == len(gap.released) else Cause.EMPTY_CACHE
    deleted = _by_call(gap, pools, cause)
    blocks = (block for block in free_blocks(allocator) if block.pool.owner is None)
    is_more_cached = any(returnable_bytes(allocator, block) for block in blocks)
    return [deleted, empty] if is_more_cached else [empty, deleted]


def _by_call(gap: Gap, pools: Sequence[int], cause: Cause) -> Explanation:
    calls: list[Planned] = [(StepKind.DELETE_POOL, gap.last, 0, pool, 0) for pool in pools]
    if cause is Cause.EMPTY_CACHE:
        calls.append((StepKind.EMPTY_CACHE, gap.last, 0, 0, 0))
    return _released_by(calls, gap, cause)


def _released_by(calls: Sequence[Planned], gap: Gap, cause: Cause) -> Explanation:
    deleted = [pool for kind, _, _, pool, _ in calls if kind == StepKind.DELETE_POOL]
    steps = (
        *_held_free(gap),
        *_completions(gap.completed[: gap.n_early]),
        *(step for step in _ended_pools(gap) if step[3] not in deleted),
        *calls,
        *_completions(gap.completed[gap.n_early :]),
        *_final_step(gap),
    )
    return Explanation(cause, steps)


def _by_request(gap: Gap, allocator: ReplayAllocator, facts: Facts) -> Iterator[Explanation]:
    # The explanations differ in the memory that the driver could provide, and in the frees that the
    # request waited for.
    step = gap.step
    if step is None or not gap.is_request:
        return
    is_oom = step.action == Action.OOM
    if not is_oom and not gap.obtained and not _may_grow_in_place(gap, allocator):
        return  # it found a free block, so it was not refused
    is_as_before = gap.scope is None and not has_just_set(gap)
    is_hit = is_as_before and finds_free_block(allocator, step.size, step.stream)
    if is_hit and allocator.config.max_split_size == UNLIMITED:
        return  # no free before the request can have removed that block
    rooms = list(_room_options(gap, allocator, facts, is_oom=is_oom))
    wanted = sum(entry.size for entry in (*gap.before, *gap.obtained))
    refused: int | None = allocator.reserved_bytes + wanted
    if is_oom or allocator.collects_garbage_above is not None:
        refused = None
    for is_waited_for in _wait_options(gap, allocator):
        for n_completed in _completed_counts(gap, allocator, is_waited_for=is_waited_for):
            if is_hit and n_completed == 0 and (is_waited_for or gap.free is None):
                continue  # the free block was still there, so the request found it
            for room in rooms:
                yield Explanation(
                    Cause.REQUEST,
                    tuple(_refused_steps(gap, n_completed, room, is_waited_for=is_waited_for)),
                    refused,
                )


def _may_grow_in_place(gap: Gap, allocator: ReplayAllocator) -> bool:
    # Mapped pages of an expandable segment (4.2) can serve the request, although the search for a
    # free block excludes them as a block of max_split_size or more.  Options that the program has
    # just set may have the same effect.
    config = allocator.config
    is_excluded = config.expandable_segments and config.max_split_size != UNLIMITED
    return is_excluded or has_just_set(gap)


def _wait_options(gap: Gap, allocator: ReplayAllocator) -> tuple[bool, ...]:
    block, step = freed_block(gap, allocator), gap.step
    if gap.free is None or step is None:
        return (False,)
    would_do = block is not None and would_serve(allocator, block, step.size, step.stream)
    return (True, False) if would_do and not has_just_set(gap) else (False, True)


def _completed_counts(
    gap: Gap, allocator: ReplayAllocator, *, is_waited_for: bool
) -> Sequence[int]:
    n_all = len(gap.completed)
    # A call in the gap may set the limit, so its request may collect garbage.
    if allocator.collects_garbage_above is not None or has_just_set(gap):
        return tuple(dict.fromkeys((gap.n_early, 0, n_all)))
    # A refused request waits for every pending free.  Before that it may release oversize blocks,
    # which needs no wait (1.8).
    waiting = {free.block.ptr for free in allocator.requested_frees if free.block is not None}
    waits = waiting == {entry.addr for entry in gap.completed} and not _are_oversize(gap, allocator)
    return tuple(dict.fromkeys((0, n_all) if is_waited_for or waits else (n_all, 0)))


def _are_oversize(gap: Gap, allocator: ReplayAllocator) -> bool:
    # A request that waits for frees returns all other cached memory too.  Without such memory, it
    # is still more likely that the frees completed than that the request waited for them.
    least, step = allocator.config.max_split_size, gap.step
    is_oversize = [entry.size >= least for entry in gap.released]
    streams = {entry.stream for entry in gap.released}
    return step is not None and all(is_oversize) and streams == {step.stream}


def _room_options(
    gap: Gap, allocator: ReplayAllocator, facts: Facts, *, is_oom: bool
) -> Iterator[int | None]:
    used = allocator.device.used + sum(round_up(entry.size, PAGE) for entry in gap.before)
    wanted = sum(round_up(entry.size, PAGE) for entry in gap.obtained)
    released = sum(round_up(entry.size, PAGE) for entry in gap.released)
    limited = allocator.memory_limit is not None
    if facts.memory is not None or limited:
        yield None
    if facts.is_assumed:
        return
    if is_oom:  # the request failed after the memory was returned
        yield used - released + wanted
        return
    # Too small before memory was returned, large enough after it.
    floor = max(used, used - released + wanted)
    most = used + wanted - PAGE
    if floor <= most:
        likely = min(max(facts.max_reserved, floor), most)
        yield from dict.fromkeys((likely, floor, most))


def _refused_steps(
    gap: Gap, n_completed: int, room: int | None, *, is_waited_for: bool
) -> Iterator[Planned]:
    step = gap.step
    assert step is not None
    waited: tuple[RecordedEntry, ...] = ()
    if gap.free is not None and is_waited_for:
        yield (StepKind.FREE_REQUEST, *_row(gap.free))
        waited = (gap.free,)
    else:
        yield from _held_free(gap)
    yield from _completions(gap.completed[:n_completed])
    yield from _wait_order(gap.completed[n_completed:])
    yield from _ended_pools(gap)
    if room is None:
        yield from _final_step(gap, (*gap.completed[n_completed:], *waited))
        return
    head, last = _split(gap)
    yield from head
    yield (StepKind.ROOM, step.number, 0, room, 0)
    yield from last
    yield (StepKind.ROOM, step.number, 0, -1, 0)
    yield from _completions((*gap.completed[n_completed:], *waited))


def _held_free(gap: Gap) -> tuple[Planned, ...]:
    return () if gap.free is None else ((StepKind.FREE, *_row(gap.free)),)


def _completions(entries: Sequence[RecordedEntry]) -> Iterator[Planned]:
    for entry in entries:
        yield (StepKind.FREE_COMPLETE, *_row(entry))


def _wait_order(entries: Sequence[RecordedEntry]) -> Iterator[Planned]:
    # A full device waits for the frees in this order.
    if len(entries) > 1:
        for entry in entries:
            yield (StepKind.AWAIT, *_row(entry))


def _ended_pools(gap: Gap) -> Iterator[Planned]:
    # It is unknown when the pools ended, only that their memory was returned.
    for pool in dict.fromkeys(entry.pool for entry in gap.released if entry.pool >= 0):
        yield (StepKind.END_POOL, gap.last, 0, pool, 0)


def _final_step(gap: Gap, late: Sequence[RecordedEntry] = ()) -> Iterator[Planned]:
    head, last = _split(gap)
    yield from head
    yield from last
    yield from _completions(late)


def _split(gap: Gap) -> tuple[list[Planned], list[Planned]]:
    step = gap.step
    if step is None:
        return [], []
    if step.action == Action.FREE_REQUESTED:
        kind = StepKind.FREE if gap.is_immediate else StepKind.FREE_REQUEST
        return [], [(kind, *_row(step))]
    head: list[Planned] = []
    if gap.scope is not None:
        head.append((StepKind.SCOPE, step.number, 0, gap.scope, step.stream))
    grown = (*gap.before, *gap.obtained)
    if grown:
        base = grown[-1]  # only the last can be a new segment; earlier ones grew a segment
        head.append((StepKind.DICTATE, step.number, base.addr, base.size, step.stream))
    kind = StepKind.ALLOC if step.action == Action.ALLOC else StepKind.OOM
    return head, [(kind, *_row(step))]


def _row(entry: RecordedEntry) -> tuple[int, int, int, int]:
    return entry.number, entry.addr, entry.size, entry.stream
