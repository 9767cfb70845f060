"""Calls of empty_cache that may have left no entry in a recording, and plans with such calls.

A plan is the steps of a replay.  A quiet moment is a point after a step at which the program may
have called empty_cache without a trace in the recording, because there was no free segment and no
free page of an expandable segment to release.  If the entries do not show the quiet moments, a
replay examines the cache after a sample of the steps.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import any_of
from allocsim.errors import ConfigError, UndefinedBehaviorError, UpstreamError
from allocsim.recording import Action, MarkKind, Trace, Turn
from allocsim.simulation import Drive, Plan, RecordedDevice, StepKind, fold_allocated, joined
from allocsim.state import DEFAULT_POOL, PENDING, SegmentState

MOMENTS = 2048
"""Maximum number of points of a recording at which the cache is examined for memory to release."""

_RELEASES = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)
_FREES = (Action.FREE_REQUESTED, Action.FREE_COMPLETED)
_LEAVES_ENTRIES = (
    StepKind.ALLOC,
    StepKind.FREE,
    StepKind.FREE_REQUEST,
    StepKind.FREE_COMPLETE,
    StepKind.OOM,
    StepKind.DICTATE,
)


@dataclass(frozen=True, slots=True)
class Quiet:
    """Quiet moments: points of a recording where a call of empty_cache would have left no entry.

    At these points no segment was free, so the program may have made a call that is not recorded.

    after: numbers of the steps right before the quiet moments.
    n_examined: number of steps after which the cache was examined.
    """

    after: tuple[int, ...]
    n_examined: int

    @property
    def share(self) -> float:
        return len(self.after) / max(self.n_examined, 1)


def moments_of(plan: Plan) -> tuple[int, ...]:
    """Return a random sample of step numbers of `plan`; the cache is examined after these steps."""
    return _sampled(len(plan.steps))


@lru_cache(maxsize=4)
def _sampled(n_steps: int) -> tuple[int, ...]:
    return tuple(sorted(random.Random(0).sample(range(n_steps), min(n_steps, MOMENTS))))


def entries_suffice(trace: Trace, plan: Plan) -> bool:
    """Return True if entries alone show where empty_cache leaves no entry, without a replay."""
    return (
        not any_of(trace.action, (*_RELEASES, Action.SEGMENT_MAP)).any()
        and all(not s.is_expandable and s.pool_id == DEFAULT_POOL for s in trace.segments)
        and bool(any_of(plan.steps.kind, _LEAVES_ENTRIES).all())
        and _all_in_segments(trace)
    )


def _all_in_segments(trace: Trace) -> bool:
    addr, bases, first = trace.by_address.addr, _bases(trace), _first_turns(trace)
    if not len(addr) or not len(bases):
        return not len(addr)
    last = np.append(first[1:], len(addr)) - 1
    total = np.array([segment.total_size for segment in trace.segments], dtype=np.uint64)
    is_inside = (last < first) | (addr[last] - bases < total)
    return bool(first[0] == 0 and is_inside.all())


def _bases(trace: Trace) -> NDArray[np.uint64]:
    return np.array([segment.address for segment in trace.segments], dtype=np.uint64)


def _first_turns(trace: Trace) -> NDArray[np.intp]:
    return np.searchsorted(trace.by_address.addr, _bases(trace))


def quiet_moments(
    device: RecordedDevice, plan: Plan, free_plan: Plan, device_memory: int | None
) -> Quiet:
    """Return the points of a recording at which a call of empty_cache would have left no entry.

    They are computed from the entries if these suffice, else by a replay.

    plan, free_plan: steps of the recording with and without the recorded results of driver calls.
    """
    if entries_suffice(device.trace, plan):
        return _from_entries(device, free_plan)
    return _from_drive(device, free_plan, device_memory)


def _from_entries(device: RecordedDevice, plan: Plan) -> Quiet:
    trace, steps = device.trace, plan.steps
    moments = np.array(moments_of(plan), dtype=np.intp)
    # A FREE step has two entries; the second completes it.
    last = steps.entry[moments] + (steps.kind[moments] == int(StepKind.FREE))
    is_quiet = _n_idle(trace, device.start)[last] == 0
    is_quiet &= ~_has_pending_free(trace, device.start, last)
    return Quiet(tuple(moments[is_quiet].tolist()), len(moments))


def _n_idle(trace: Trace, start: Sequence[SegmentState]) -> NDArray[np.int32]:
    turns, bases = trace.by_address, [segment.address for segment in trace.segments]
    n_turns = np.diff(_first_turns(trace), append=len(turns))
    # The smallest integer type, because most of the time is spent on new memory pages.
    width = np.min_scalar_type(len(bases))
    number = np.zeros(len(trace), dtype=width)
    number[turns.entry] = np.repeat(np.arange(len(bases), dtype=width), n_turns)
    moves = np.flatnonzero(any_of(trace.action, (Action.ALLOC, Action.FREE_COMPLETED)))
    # Ordered by segment, then by entry.
    entry = moves[np.argsort(number[moves], kind="stable")]
    is_alloc = any_of(trace.action[entry], (Action.ALLOC,))
    moved = 2 * is_alloc.view(np.int8) - 1
    sums = np.cumsum(moved, dtype=np.int32)
    n_moves = np.bincount(number[moves], minlength=len(bases))
    before = np.append(np.int32(0), sums)[np.cumsum(n_moves) - n_moves]
    held = {s.address: sum(block.is_active for block in s.blocks) for s in start}
    at_start = np.array([held.get(base, 0) for base in bases], dtype=np.int32)
    # Blocks in use in the segment of each alloc and free, including those from the start.
    in_use = sums - np.repeat(before - at_start, n_moves)
    # +1 where a segment becomes unused, -1 where an unused one gets a block.
    turned = np.zeros(len(trace), dtype=np.int8)
    turned[entry] = (in_use == 0).view(np.int8) - (in_use == moved).view(np.int8)
    turned[any_of(trace.action, (Action.SEGMENT_ALLOC,))] = 1  # new, without a block yet
    n_idle = np.cumsum(turned, dtype=np.int32)
    n_idle += sum(segment.is_idle for segment in start)
    return n_idle


def _has_pending_free(
    trace: Trace, start: Sequence[SegmentState], entries: NDArray[np.intp]
) -> NDArray[np.bool_]:
    at_start = sum(block.state == PENDING for segment in start for block in segment.blocks)
    turns = trace.by_address
    if not at_start and not any_of(turns.kind, (Turn.FREE_REQUESTED,)).any():
        return np.zeros(len(entries), dtype=bool)
    requested, completed = (any_of(trace.action, (kind,)).view(np.int8) for kind in _FREES)
    n_waiting = at_start + np.cumsum(requested - completed, dtype=np.int32)
    waits: NDArray[np.bool_] = n_waiting[entries] != 0
    return waits


def _from_drive(device: RecordedDevice, plan: Plan, device_memory: int | None) -> Quiet:
    moments = moments_of(plan)
    quiet: list[int] = []
    try:
        allocator = device.allocator(
            device.recorded,
            device_memory,
            limit=device.limit_for(device.recorded, device_memory, plan),
        )
        Probe(
            allocator,
            plan,
            len(device.trace),
            dictates=False,
            folder=fold_allocated,
            address_events=device.addresses.events,
            moments=moments,
            quiet=quiet,
        ).find()
    except (ConfigError, UndefinedBehaviorError, UpstreamError):
        pass  # the moments found so far are valid
    return Quiet(tuple(moments[number] for number in quiet), len(moments))


@dataclass(slots=True)
class Probe(Drive):
    """Replay that finds quiet moments: steps after which empty_cache would leave no entry.

    moments: numbers of the steps after which the cache is examined, in order.
    quiet: indices in `moments` of the quiet moments, filled by the replay.
    loud: indices in `moments` of the steps after which a call would leave entries, also filled.
    """

    moments: Sequence[int] = ()
    quiet: list[int] = field(default_factory=list)
    loud: list[int] = field(default_factory=list)

    def find(self) -> None:
        """Replay the plan up to the last step in `moments`, and fill `quiet` and `loud`."""
        self._run_range(0, self.moments[-1] + 1 if self.moments else 0)

    def _run_range(self, start: int, stop: int) -> None:
        first = bisect_left(self.moments, start)
        for number in range(first, bisect_left(self.moments, stop)):
            after = self.moments[number] + 1
            Drive._run_range(self, start, after)  # super() fails in a dataclass with slots
            if self.stopped_at is not None:
                return
            start = after
            # With a pending free, a call would complete it and so leave an entry.
            may_call = self._scope is None and not self._waiting
            is_quiet = may_call and not self.allocator.has_cached_memory
            (self.quiet if is_quiet else self.loud).append(number)
        Drive._run_range(self, start, stop)


HIDING = 0.2
"""Share of quiet moments, from 0 to 1, at or above which a recording may hide empty_cache calls.

At a quiet moment, a call leaves no entry.  With a lower share, a recording that shows no such call
is assumed to hide none.  Recordings of whole programs mostly have a lower share
(docs/evidence/fidelity.md)."""

LEAST_DRAWN, MOST_DRAWN, MOST_SINGLE = 4, 64, 16
"""Limits on the number of random plans: the minimum, the maximum for plans with several added calls
of empty_cache, and the maximum for plans with one added call."""
STEPS = 400_000
"""Limit of the steps of all random plans together; `LEAST_DRAWN` plans are tried in any case."""


@dataclass(frozen=True, slots=True)
class OtherPlan:
    """Steps (a plan) of another program that would have left the same recording.

    base: plan with the inferred calls of empty_cache only.
    calls: numbers of the steps of `base` after which the program calls empty_cache, in order.
    """

    base: Plan
    calls: tuple[int, ...] = ()

    def plan(self) -> Plan:
        return with_calls(self.base, self.calls) if self.calls else self.base


def open_plans(
    device: RecordedDevice, plan: Plan, quiet: Callable[[], Quiet]
) -> Iterator[OtherPlan]:
    """Yield other plans (steps of a replay) that would have left the same recording.

    Replays of these plans under other settings give the range of possible peaks.

    quiet: function that returns the points where a call of empty_cache leaves no entry; it is
        called only if the plans depend on these points.
    """
    for limit in sorted({*(plan.limits or ())} - {plan.limit}):
        yield OtherPlan(replace(plan, limit=limit))
    if has_unseen_calls(device, plan):
        if device.collects_at is not None:  # perhaps garbage collection freed the memory
            yield OtherPlan(replace(plan, steps=plan.steps.without(StepKind.EMPTY_CACHE)))
        yield from _with_calls_at_rate(plan, quiet())
    elif may_hide_calls(device, plan, quiet):
        yield from _with_single_calls(plan, quiet())


def leaves_open(device: RecordedDevice, plan: Plan) -> bool:
    """Return True if the recording hides the exact memory limit or some empty_cache calls."""
    return plan.limits is not None or has_unseen_calls(device, plan)


def has_unseen_calls(device: RecordedDevice, plan: Plan) -> bool:
    is_marked = any(mark.kind is MarkKind.EMPTY_CACHE for mark in device.marks)
    return plan.n_empty_cache > 0 and not is_marked


def may_hide_calls(device: RecordedDevice, plan: Plan, quiet: Callable[[], Quiet]) -> bool:
    """Return True if the recording shows no empty_cache call, but many steps could hide one."""
    return _shows_none(device, plan) and quiet().share >= HIDING


def _shows_none(device: RecordedDevice, plan: Plan) -> bool:
    # `allocsim record` notes every call, so its recordings exclude calls without a mark.
    is_open = device.provenance is None and device.hints.empties
    return is_open and not plan.empties_cache


def needs_quiet_moments(device: RecordedDevice, plan: Plan) -> bool:
    """Return True if the range of a what-if's peak depends on the quiet moments.

    A quiet moment is a point of the recording where a call of empty_cache would have left no entry.
    """
    return has_unseen_calls(device, plan) or _shows_none(device, plan)


def _with_calls_at_rate(plan: Plan, quiet: Quiet) -> Iterator[OtherPlan]:
    # First with calls at all quiet moments, then at random ones, as frequent per step as the
    # empty_cache calls that the recording shows.
    yield OtherPlan(plan, quiet.after)
    n_steps = len(plan.steps)
    # Moments that are not quiet show every call, so they give the number of calls per step.
    n_loud = n_steps * (1 - quiet.share)
    probability = plan.n_empty_cache / max(n_loud, 1) * n_steps / max(quiet.n_examined, 1)
    for seed in range(_n_drawn(plan, MOST_DRAWN)):
        rng = random.Random(seed)
        calls = tuple(at for at in quiet.after if rng.random() < probability)
        yield OtherPlan(plan, calls)


def _with_single_calls(plan: Plan, quiet: Quiet) -> Iterator[OtherPlan]:
    yield OtherPlan(plan, quiet.after)
    n_drawn = min(_n_drawn(plan, MOST_SINGLE), len(quiet.after))
    for at in random.Random(0).sample(quiet.after, n_drawn):
        yield OtherPlan(plan, (at,))


def _n_drawn(plan: Plan, most: int) -> int:
    return min(max(STEPS // max(len(plan.steps), 1), LEAST_DRAWN), most)


def with_calls(plan: Plan, places: Sequence[int]) -> Plan:
    entries = plan.steps.entry[list(places)].tolist()
    calls = [
        (at + 1, [(int(StepKind.EMPTY_CACHE), entry, 0, 0, 0)])
        for at, entry in zip(places, entries, strict=True)
    ]
    return replace(plan, steps=joined(plan.steps, calls))
