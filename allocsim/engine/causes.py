"""Why memory was given back: the causes that a recording leaves open, with what each comes to.

Rule: a cause is a hypothesis.  It is written as the steps that it stands for, so that the model
can be driven through it and compared with what was recorded; which comes first is a matter of
likelihood, which is kept a matter of what follows (`reading.py` asks for `explanations` at gaps).

What tells them apart (semantics 1.8, 2.4, 2.5):

- A request that found a free block was refused nothing (but see `_may_grow_in_place`): what was
  given back before it was given back by a call of empty_cache.
- A request is refused where the device is full, so never below what the device is known to hold.
- The Python stack of an entry may name empty_cache.  One that does not tells nothing: releases
  may write the stack of what once obtained the memory.
- A refused request and empty_cache wait for every free that is under way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from allocsim.core import (
    PAGE,
    UNLIMITED,
    CachingAllocator,
    finds_free_block,
    free_blocks,
    returnable_bytes,
    would_serve,
)
from allocsim.engine.gaps import Gap, Recorded
from allocsim.engine.likelihood import Facts, freed_block, has_just_set, is_limited, was_called
from allocsim.engine.plan import Planned, StepKind
from allocsim.trace import Action
from allocsim.units import round_up

__all__ = [
    "Cause",
    "Explanation",
    "called_explanation",
    "explanations",
    "plain_explanation",
]


class Cause(Enum):
    """What made the allocator give memory back."""

    NOTHING = "nothing was given back"
    EMPTY_CACHE = "empty_cache was called"
    DELETED_POOL = "a MemPool was deleted"
    REQUEST = "the request itself: refused at first, or collecting garbage"
    KNOWN = "the program's own calls, as recorded or told"


@dataclass(frozen=True, slots=True)
class Explanation:
    """One way to account for a gap.

    refused: bytes that the device would have had to hold, where its being full explains it.
    """

    cause: Cause
    steps: tuple[Planned, ...]
    refused: int | None = None


def plain_explanation(gap: Gap) -> Explanation:
    """What needs no guess: frees complete as they were recorded, memory is obtained.

    An error was raised after every free had been waited for, which did not help it.
    """
    late = gap.completed if gap.step is not None and gap.step.action == Action.OOM else ()
    early = () if late else gap.completed
    steps = (*_held(gap), *_completed(early), *_made(gap), *_awaited(late), *_stepped(gap, late))
    return Explanation(Cause.KNOWN if gap.calls else Cause.NOTHING, steps)


def called_explanation(gap: Gap) -> Explanation:
    """What was given back was given back by a call of empty_cache."""
    return _with_calls(_called(gap, (), Cause.EMPTY_CACHE), gap)


def known_explanation(gap: Gap) -> Explanation | None:
    """What is known to have been called gave back what was given back; None where it did not."""
    if not gap.is_open:
        return plain_explanation(gap)
    return _known(gap) if gap.calls and gap.released and _gives_back(gap) else None


def explanations(gap: Gap, allocator: CachingAllocator, facts: Facts) -> list[Explanation]:
    """The ways to account for `gap`, the likeliest first.

    allocator: as it is before the gap.
    """
    ways = _guesses(gap, allocator, facts)
    if not facts.empties:
        ways = [each for each in ways if each.cause is not Cause.EMPTY_CACHE]
    if gap.calls:
        ways = [_with_calls(each, gap) for each in ways]
        if gap.released and _gives_back(gap):
            ways.insert(0, _known(gap))
    return ways or [plain_explanation(gap)]


def _guesses(gap: Gap, allocator: CachingAllocator, facts: Facts) -> list[Explanation]:
    """The ways that need no call to be known."""
    step = gap.step
    # An error although the device had room: something else allowed no more.
    had_room = step is not None and step.action == Action.OOM and step.size <= allocator.device.free
    if not gap.released and not had_room and not (gap.free and gap.is_request):
        return [plain_explanation(gap)]
    requests = list(_requests(gap, allocator, facts))
    if not gap.released:
        plain = [plain_explanation(gap)]
        return requests + plain if had_room and facts.memory is not None else plain + requests
    calls = _calls(gap, allocator)
    if not gap.is_request or was_called(gap, allocator, facts):
        if not is_limited(gap, allocator):
            return calls + requests
        own = [each for each in requests if all(kind != StepKind.ROOM for kind, *_ in each.steps)]
        return own + calls + [each for each in requests if each not in own]
    return requests + calls


def _gives_back(gap: Gap) -> bool:
    """Whether calls that are known may have given memory back."""
    return any(call.kind in (StepKind.EMPTY_CACHE, StepKind.DELETE_POOL) for call in gap.calls)


def _known(gap: Gap) -> Explanation:
    """What is known to have been called gave the memory back."""
    return _given_back_by(tuple(_made(gap)), gap, Cause.KNOWN)


def _with_calls(explanation: Explanation, gap: Gap) -> Explanation:
    """The same, and what is known to have been called before."""
    if explanation.cause is Cause.KNOWN:
        return explanation
    n_before = int(gap.free is not None)
    steps = explanation.steps
    return replace(explanation, steps=(*steps[:n_before], *_made(gap), *steps[n_before:]))


def _made(gap: Gap) -> Iterator[Planned]:
    """What is known to have been called."""
    for call in gap.calls:
        yield (call.kind, gap.last, 0, call.number, 0)


def _calls(gap: Gap, allocator: CachingAllocator) -> list[Explanation]:
    """empty_cache, and the end of MemPools where private pools alone give memory back.

    A deleted MemPool takes its own memory with it; the rest stays cached (semantics 5.7).
    """
    first = next((i for i, entry in enumerate(gap.released) if entry.pool < 0), len(gap.released))
    empty = _called(gap, (), Cause.EMPTY_CACHE)
    if first == 0:
        return [empty]
    pools = tuple(dict.fromkeys(entry.pool for entry in gap.released[:first]))
    cause = Cause.DELETED_POOL if first == len(gap.released) else Cause.EMPTY_CACHE
    deleted = _called(gap, pools, cause)
    blocks = (block for block in free_blocks(allocator) if block.pool.owner is None)
    is_more_cached = any(returnable_bytes(allocator, block) for block in blocks)
    return [deleted, empty] if is_more_cached else [empty, deleted]


def _called(gap: Gap, pools: Sequence[int], cause: Cause) -> Explanation:
    """pools: those whose MemPool was deleted."""
    calls: list[Planned] = [(StepKind.DELETE_POOL, gap.last, 0, pool, 0) for pool in pools]
    if cause is Cause.EMPTY_CACHE:
        calls.append((StepKind.EMPTY_CACHE, gap.last, 0, 0, 0))
    return _given_back_by(calls, gap, cause)


def _given_back_by(calls: Sequence[Planned], gap: Gap, cause: Cause) -> Explanation:
    """Calls gave the memory back: after the frees before it, and before those that followed."""
    deleted = [pool for kind, _, _, pool, _ in calls if kind == StepKind.DELETE_POOL]
    steps = (
        *_held(gap),
        *_completed(gap.completed[: gap.n_early]),
        *(step for step in _ended(gap) if step[3] not in deleted),
        *calls,
        *_completed(gap.completed[gap.n_early :]),
        *_stepped(gap),
    )
    return Explanation(cause, steps)


def _requests(gap: Gap, allocator: CachingAllocator, facts: Facts) -> Iterator[Explanation]:
    """The request gave memory back itself; by how much the device was too small for it, and which
    frees it waited for."""
    step = gap.step
    if step is None or not gap.is_request:
        return
    is_oom = step.action == Action.OOM
    if not is_oom and not gap.obtained and not _may_grow_in_place(gap, allocator):
        return  # it found a free block, so that it was refused nothing
    is_as_before = gap.scope is None and not has_just_set(gap)
    is_hit = is_as_before and finds_free_block(allocator, step.size, step.stream)
    if is_hit and allocator.config.max_split_size == UNLIMITED:
        return  # no free before it can have taken that block away
    rooms = list(_rooms(gap, allocator, facts, is_oom=is_oom))
    wanted = sum(entry.size for entry in (*gap.before, *gap.obtained))
    refused: int | None = allocator.reserved_bytes + wanted
    if is_oom or allocator.collects_garbage_above is not None:
        refused = None
    for is_waited_for in _held_ways(gap, allocator):
        for n_polled in _polled(gap, allocator, is_waited_for=is_waited_for):
            if is_hit and n_polled == 0 and (is_waited_for or gap.free is None):
                continue
            for room in rooms:
                yield Explanation(
                    Cause.REQUEST,
                    tuple(_refused(gap, n_polled, room, is_waited_for=is_waited_for)),
                    refused,
                )


def _may_grow_in_place(gap: Gap, allocator: CachingAllocator) -> bool:
    """Whether a request that no free block may serve can be given one all the same, as a segment's
    room that needs no mapping (4.2): a block too good for it, which the search leaves alone.

    Under options that the program has just set, it may be so whatever held before.
    """
    config = allocator.config
    is_so = config.expandable_segments and config.max_split_size != UNLIMITED
    return is_so or has_just_set(gap)


def _held_ways(gap: Gap, allocator: CachingAllocator) -> tuple[bool, ...]:
    """Whether the free before it was waited for; the likelier first."""
    block, step = freed_block(gap, allocator), gap.step
    if gap.free is None or step is None:
        return (False,)
    would_do = block is not None and would_serve(allocator, block, step.size, step.stream)
    return (True, False) if would_do and not has_just_set(gap) else (False, True)


def _polled(gap: Gap, allocator: CachingAllocator, *, is_waited_for: bool) -> Sequence[int]:
    """How many of the frees were complete before the request looked for a block."""
    n_all = len(gap.completed)
    if allocator.collects_garbage_above is not None:
        return tuple(dict.fromkeys((gap.n_early, 0, n_all)))
    # A device that is full waits for every free that is under way, unless before that it finds
    # blocks too good for requests, which it gives back without a wait (1.8).
    waiting = {free.block.ptr for free in allocator.requested_frees if free.block is not None}
    waits = waiting == {entry.addr for entry in gap.completed} and not _are_too_good(gap, allocator)
    return tuple(dict.fromkeys((0, n_all) if is_waited_for or waits else (n_all, 0)))


def _are_too_good(gap: Gap, allocator: CachingAllocator) -> bool:
    """Whether all that was given back was of max_split_size or more, in the request's own stream.

    A wait gives back whatever is cached besides; where nothing is, that says nothing, and it is
    likelier that a free was complete than that a request waited for it to take its block away.
    """
    least, step = allocator.config.max_split_size, gap.step
    is_oversize = [entry.size >= least for entry in gap.released]
    streams = {entry.stream for entry in gap.released}
    return step is not None and all(is_oversize) and streams == {step.stream}


def _rooms(
    gap: Gap, allocator: CachingAllocator, facts: Facts, *, is_oom: bool
) -> Iterator[int | None]:
    """Bytes that the driver had to give in all, as far as the request tells; None: as many as the
    device has."""
    used = allocator.device.used + sum(round_up(entry.size, PAGE) for entry in gap.before)
    wanted = sum(round_up(entry.size, PAGE) for entry in gap.obtained)
    released = sum(round_up(entry.size, PAGE) for entry in gap.released)
    limited = allocator.memory_limit is not None
    if facts.memory is not None or limited:
        yield None
    if facts.is_assumed:
        return
    if is_oom:
        yield used - released + wanted
        return
    floor = max(used, used - released + wanted)
    most = used + wanted - PAGE
    if floor <= most:
        likely = min(max(facts.max_reserved, floor), most)
        yield from dict.fromkeys((likely, floor, most))


def _refused(
    gap: Gap, n_polled: int, room: int | None, *, is_waited_for: bool
) -> Iterator[Planned]:
    step = gap.step
    assert step is not None
    waited: tuple[Recorded, ...] = ()
    if gap.free is not None and is_waited_for:
        yield (StepKind.FREE_REQUEST, *_row(gap.free))
        waited = (gap.free,)
    else:
        yield from _held(gap)
    yield from _completed(gap.completed[:n_polled])
    yield from _awaited(gap.completed[n_polled:])
    yield from _ended(gap)
    if room is None:
        yield from _stepped(gap, (*gap.completed[n_polled:], *waited))
        return
    head, last = _split(gap)
    yield from head
    yield (StepKind.ROOM, step.number, 0, room, 0)
    yield from last
    yield (StepKind.ROOM, step.number, 0, -1, 0)
    yield from _completed((*gap.completed[n_polled:], *waited))


def _held(gap: Gap) -> tuple[Planned, ...]:
    return () if gap.free is None else ((StepKind.FREE, *_row(gap.free)),)


def _completed(entries: Sequence[Recorded]) -> Iterator[Planned]:
    for entry in entries:
        yield (StepKind.FREE_COMPLETE, *_row(entry))


def _awaited(entries: Sequence[Recorded]) -> Iterator[Planned]:
    """The order in which the frees were waited for, which only streams' events know."""
    if len(entries) > 1:
        for entry in entries:
            yield (StepKind.AWAIT, *_row(entry))


def _ended(gap: Gap) -> Iterator[Planned]:
    """A private pool whose memory goes back was released before, at a time that nothing tells."""
    for pool in dict.fromkeys(entry.pool for entry in gap.released if entry.pool >= 0):
        yield (StepKind.END_POOL, gap.last, 0, pool, 0)


def _stepped(gap: Gap, late: Sequence[Recorded] = ()) -> Iterator[Planned]:
    """The step that ends the gap, and the frees that complete in it."""
    head, last = _split(gap)
    yield from head
    yield from last
    yield from _completed(late)


def _split(gap: Gap) -> tuple[list[Planned], list[Planned]]:
    """What comes before the step that ends the gap, and that step."""
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
        base = grown[-1]  # the others grew a segment that there was: a fresh one has room for all
        head.append((StepKind.DICTATE, step.number, base.addr, base.size, step.stream))
    kind = StepKind.ALLOC if step.action == Action.ALLOC else StepKind.OOM
    return head, [(kind, *_row(step))]


def _row(entry: Recorded) -> tuple[int, int, int, int]:
    return entry.number, entry.addr, entry.size, entry.stream
