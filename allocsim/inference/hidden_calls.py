"""Steps of a recording after which a call of empty_cache would have left no entry.

They are called quiet moments.  At a quiet moment the cache contains no unused segment and no unused
page of an expandable segment, so a call returns nothing to the driver.  If a recording has no
segment_free or segment_unmap entry, its entries alone show when segments are unused.  Otherwise the
recording is replayed, and the cache is examined after a sample of the steps.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import any_of
from allocsim.errors import ConfigError, UndefinedBehaviorError, UpstreamError
from allocsim.recording import Action, Trace, Turn
from allocsim.simulation import Drive, Plan, RecordedDevice, StepKind, fold_allocated
from allocsim.state import DEFAULT_POOL, PENDING, SegmentState

MOMENTS = 2048
"""Largest number of steps after which the cache is examined."""

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
    """Quiet moments of a recording: a call of empty_cache there would have left no entry.

    after: numbers of the steps right before the quiet moments.
    n_examined: number of steps after which the cache was examined.
    """

    after: tuple[int, ...]
    n_examined: int

    @property
    def share(self) -> float:
        """Quiet moments as a share of the examined ones, from 0 to 1."""
        return len(self.after) / max(self.n_examined, 1)


def moments_of(plan: Plan) -> list[int]:
    """Return the numbers of the steps of `plan` after which to examine the cache.

    For a long recording they are a random sample of `MOMENTS` steps, because evenly spaced steps
    could all be at the same place of a training step.
    """
    n_steps = len(plan.steps)
    return sorted(random.Random(0).sample(range(n_steps), min(n_steps, MOMENTS)))


def entries_suffice(trace: Trace, plan: Plan) -> bool:
    """Return True if the quiet moments follow from the entries alone, so that no replay is needed.

    plan: plan that contains the addresses and refusals that the driver answered when recorded.
    """
    return (
        not any_of(trace.action, (*_RELEASES, Action.SEGMENT_MAP)).any()
        and all(not s.is_expandable and s.pool_id == DEFAULT_POOL for s in trace.segments)
        and bool(any_of(plan.steps.kind, _LEAVES_ENTRIES).all())
        and _all_in_segments(trace)
    )


def _all_in_segments(trace: Trace) -> bool:
    """Return True if every block of `trace` is inside a recorded segment."""
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
    """Return, for each segment, the index of the first item of `by_address` at or above it."""
    return np.searchsorted(trace.by_address.addr, _bases(trace))


def quiet_moments(
    device: RecordedDevice, plan: Plan, free_plan: Plan, device_memory: int | None
) -> Quiet:
    """Return the quiet moments of a recording, from its entries or by a replay.

    free_plan: `plan` without the recorded answers of the driver; its steps number the moments.
    device_memory: bytes of the device as recorded or inferred; None for an unlimited device.
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
    """Return the number of unused segments after each entry.  Needs `entries_suffice`."""
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
    """Return the mask of `entries` after which a free is pending."""
    at_start = sum(block.state == PENDING for segment in start for block in segment.blocks)
    turns = trace.by_address
    if not at_start and not any_of(turns.kind, (Turn.FREE_REQUESTED,)).any():
        return np.zeros(len(entries), dtype=bool)
    requested, completed = (any_of(trace.action, (kind,)).view(np.int8) for kind in _FREES)
    n_waiting = at_start + np.cumsum(requested - completed, dtype=np.int32)
    waits: NDArray[np.bool_] = n_waiting[entries] != 0
    return waits


def _from_drive(device: RecordedDevice, plan: Plan, device_memory: int | None) -> Quiet:
    """Find the quiet moments by a replay; if it fails, only up to the failed step."""
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
    """Replay that finds quiet moments.

    moments: numbers of the steps after which the cache is examined, in order.
    quiet: indices in `moments` of the quiet moments found so far.
    loud: indices of the other moments so far.
    """

    moments: Sequence[int] = ()
    quiet: list[int] = field(default_factory=list)
    loud: list[int] = field(default_factory=list)

    def find(self) -> None:
        """Replay the plan up to the last of `moments`, and fill `quiet`.

        Stop early at an out-of-memory error that the recording does not contain.
        """
        self._run_some(0, self.moments[-1] + 1 if self.moments else 0)

    def _run_some(self, start: int, stop: int) -> None:
        first = bisect_left(self.moments, start)
        for number in range(first, bisect_left(self.moments, stop)):
            after = self.moments[number] + 1
            Drive._run_some(self, start, after)  # super() fails in a dataclass with slots
            if self.stopped_at is not None:
                return
            start = after
            # With a pending free, a call would complete it and so leave an entry.
            may_call = self._scope is None and not self._waiting
            is_quiet = may_call and not self.allocator.has_cached_memory
            (self.quiet if is_quiet else self.loud).append(number)
        Drive._run_some(self, start, stop)
