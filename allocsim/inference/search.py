"""Search for a plan (steps of a replay) that reproduces a recording.

The plan may have inferred calls that left no entry, such as empty_cache.  A gap consists of entries
that the allocator caused, such as segment_free.  The recording is replayed with the most likely
explanation of each gap (`inferred_calls.py`).  At the first difference, the search goes back to the
last gap with an untried explanation, and replays again.  If no replay succeeds, the plan with the
latest difference is kept.

The search changes at most the last `LOOK_BACK` choices of an explanation.  All replays together
have at most `DRIVES` times the entries of the recording, or `STEPS` entries if that is more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import any_of, numbered
from allocsim.core import PAGE, ReplayAllocator
from allocsim.errors import AllocsimError
from allocsim.fidelity import FidelityCheck
from allocsim.inference.evidence import Facts, Threshold
from allocsim.inference.gaps import Gap, PlainSteps, calls_of, capacity_from_oom, classify, gaps_of
from allocsim.inference.inferred_calls import (
    Cause,
    Explanation,
    called_explanation,
    explanations,
    known_explanation,
    plain_explanation,
)
from allocsim.recording import Action, PoolColumn, Trace, pools_of
from allocsim.simulation import PAUSE_EVERY, Drive, Plan, Planned, RecordedDevice, StepKind
from allocsim.units import GIB, TIB, round_up


@dataclass(frozen=True, slots=True, eq=False)
class DeletedPool:
    """Private pool that the program deleted before the end, such as that of a CUDA graph.

    Before PyTorch 2.12, only the final segments of a recording name their pool.  If a request
    obtains a segment although a free block fits, the segment belongs to a deleted pool.

    first: entry that obtains the first segment of the pool.
    last: last entry that releases a segment of the pool.
    rows: numbers of all entries with addresses in these segments.
    """

    first: int
    last: int
    rows: NDArray[np.intp]


def deleted_pool(trace: Trace, entry: int | None) -> DeletedPool | None:
    """Return the deleted pool whose first segment is obtained at `entry`; None if there is none.

    The pool has all segments obtained from `entry` on that are released together with the first.
    """
    action, addr = trace.action, trace.addr
    if entry is None or trace.pool_ids or action[entry] != Action.SEGMENT_ALLOC:
        return None
    is_release = any_of(action, (Action.SEGMENT_FREE,))
    released = np.flatnonzero(is_release & (addr == addr[entry]))
    released = released[released > entry]
    if not len(released):
        return None
    others = np.flatnonzero(~is_release)
    at = int(np.searchsorted(others, released[0]))
    stop = int(others[at]) if at < len(others) else len(trace)
    is_of_pool = np.zeros(len(trace), dtype=bool)
    for release in range(int(others[at - 1]) + 1, stop):
        base = addr[release]
        same = slice(entry, release + 1)
        obtained = np.flatnonzero((action[same] == Action.SEGMENT_ALLOC) & (addr[same] == base))
        if len(obtained):
            same = slice(entry + int(obtained[-1]), release + 1)
            offset = addr[same] - base  # unsigned: lower addresses wrap to large numbers
            is_of_pool[same] |= offset < np.uint64(trace.size[release])
    is_of_pool &= action != Action.OOM  # its address is a number of bytes
    return DeletedPool(entry, stop - 1, np.flatnonzero(is_of_pool))


def with_pools(pools: PoolColumn, deleted: Sequence[DeletedPool]) -> PoolColumn:
    """Return `pools` with the entries of each deleted pool assigned to a new pool."""
    number, ids = pools.number.copy() if deleted else pools.number, pools.ids
    for pool in deleted:
        number[pool.rows] = len(ids)
        ids = (*ids, (0, 1 + max((second for _, second in ids), default=0)))
    return PoolColumn(number, ids)


LOOK_BACK = 12
"""Number of latest choices of an explanation that the search may change after a difference."""

DRIVES = 4
STEPS = 400_000

MOST_DELETED_POOLS = 8

_EMPTY_CACHE = "empty_cache"


def plan_of(device: RecordedDevice) -> Plan:
    """Return the plan (steps of a replay) of a recording, found by replays under `device.release`.

    If no replay reproduces the recording, the device size is unknown and expandable segments are
    on, the replays are repeated with an assumed size: the highest reserved memory, rounded up to a
    multiple of 1 GiB, or if that fails too, of 0.5 GiB.
    """
    plan = _with_deleted_pools(device, _found_plan(device, device.named_memory))
    expands = device.config.expandable_segments
    if plan.is_whole or not expands or device.capacity_of(plan):
        return plan
    for memory in (round_up(plan.max_reserved, step) for step in (GIB, GIB // 2)):
        found = _found_plan(device, memory, is_assumed=True)
        if found.is_whole:
            return replace(found, fits=memory)
    return plan


def _with_deleted_pools(device: RecordedDevice, plan: Plan) -> Plan:
    found, pools = plan, list[DeletedPool]()
    while not found.is_whole and len(pools) < MOST_DELETED_POOLS:
        pool = deleted_pool(device.trace, found.parts_at)
        if pool is None or (pools and pool.first <= pools[-1].last):
            break
        pools.append(pool)
        found = _found_plan(device, device.named_memory, deleted=pools)
    return found if found.is_whole else plan


def _found_plan(
    device: RecordedDevice,
    memory: int | None,
    *,
    is_assumed: bool = False,
    deleted: Sequence[DeletedPool] = (),
) -> Plan:
    # A recording with a provenance has marks of memory limits, so first none is inferred.
    is_assumed |= device.assumed_memory is not None and not device.recorded_memory
    noted = () if device.provenance is None else (None,)
    for collects_at in dict.fromkeys((*noted, device.collects_at)):
        plan = _plan(
            device, memory, is_assumed=is_assumed, collects_at=collects_at, deleted=deleted
        )
        if plan.is_whole:
            break
    return plan


def _plan(
    device: RecordedDevice,
    memory: int | None,
    *,
    is_assumed: bool,
    collects_at: float | None,
    deleted: Sequence[DeletedPool],
) -> Plan:
    # `collects_at` is the option garbage_collection_threshold if its limit must be inferred, else
    # None.
    trace = device.trace
    pools = with_pools(pools_of(trace), deleted)
    calls, changes = calls_of(device.marks, pools.ids)
    masks = classify(trace, pools, calls)
    plain = PlainSteps.of(trace, masks)
    gaps = tuple(gaps_of(trace, pools, masks, calls))
    places: list[int] = np.searchsorted(
        plain.entry, [gap.last for gap in gaps], side="right"
    ).tolist()
    max_reserved = trace.most_reserved(device.held)
    capacity = capacity_from_oom(trace, device.held)
    threshold, is_whole, n_either, parts_at = None, True, 0, None
    is_driven, named = any(gap.is_open for gap in gaps), _entries_naming_empty_cache(trace)
    by_calls = [known_explanation(gap) for gap in gaps] if is_driven and device.is_made else []
    chosen = [each for each in by_calls if each is not None]
    if chosen and len(chosen) == len(gaps):
        pass  # the known calls explain every gap
    elif is_driven:
        empties = device.hints.empties
        facts = Facts(memory or capacity, max_reserved, named, is_assumed, empties)
        plain_plan = Plan(plain.steps(trace), 0, None, None, 0, pools.ids, changes=changes)
        search = _Search(device, plain_plan, gaps, places, facts)
        if collects_at is not None:
            search.threshold = Threshold(collects_at, max_reserved, facts.memory)
        is_whole = search.find()
        parts_at = search.parts_at
        n_either = search.check_device() if is_whole else 0
        chosen = search.path
        threshold = search.threshold
    else:
        chosen = [plain_explanation(gap) for gap in gaps]
    refused = [each.refused for each in chosen if each.refused is not None]
    return Plan(
        plain.steps(trace, [(at, each.steps) for at, each in zip(places, chosen, strict=True)]),
        max_reserved,
        capacity,
        min(refused, default=None),
        sum(each.cause is Cause.EMPTY_CACHE for each in chosen),
        pools.ids,
        limit=None if threshold is None else threshold.limit_found,
        limits=None if threshold is None else threshold.limit_range,
        is_whole=is_whole,
        is_proved=is_driven and is_whole,
        n_named=sum(_is_named(gap, each, named) for gap, each in zip(gaps, chosen, strict=True)),
        n_either=n_either,
        changes=changes,
        parts_at=parts_at,
        deleted_pools=tuple((pool.first, pool.last) for pool in deleted),
    )


def _is_named(gap: Gap, explanation: Explanation, named: frozenset[int]) -> bool:
    is_call = explanation.cause is Cause.EMPTY_CACHE
    return is_call and any(entry.number in named for entry in gap.released)


def _entries_naming_empty_cache(trace: Trace) -> frozenset[int]:
    rows = np.flatnonzero(any_of(trace.action, (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)))
    stacks, stack_of = numbered(trace.frames[rows])
    naming = [
        any(frame.name == _EMPTY_CACHE for frame in trace.frame_table.stack(stack))
        for stack in stacks.tolist()
    ]
    return frozenset(rows[np.array(naming, dtype=bool)[stack_of]].tolist())


Watch = Callable[[ReplayAllocator], None]


class _Along(Drive):
    def _entry(self) -> int:
        return -1

    def plain(self, start: int, stop: int) -> None:
        for first in range(start, stop, PAUSE_EVERY):
            self._run_range(first, min(first + PAUSE_EVERY, stop))
            self._compare()

    def explained(self, steps: Sequence[Planned], before_request: Watch | None) -> None:
        for kind, _, addr, size, stream in steps:
            if before_request is not None and kind in (StepKind.ALLOC, StepKind.OOM):
                before_request(self.allocator)
            if self.stopped_at is None:
                self._take(kind, addr, size, stream)
        self._compare()

    def _compare(self) -> None:
        assert self.fidelity is not None
        self.timeline.moved.clear()
        self.fidelity.history(self.allocator.take_history())

    @property
    def has_diverged(self) -> bool:
        assert self.fidelity is not None
        return self.stopped_at is not None or self.fidelity.has_diverged


@dataclass(slots=True)
class _Choice:
    taken: int
    ways: int


@dataclass(slots=True)
class _Search:
    # `places` is the number of plain steps before each gap; `path` has the chosen explanations of
    # the first gaps; `choices` has a choice for each gap with several explanations.
    device: RecordedDevice
    plan: Plan
    gaps: tuple[Gap, ...]
    places: list[int]
    facts: Facts
    path: list[Explanation] = field(default_factory=list)
    choices: dict[int, _Choice] = field(default_factory=dict)
    threshold: Threshold | None = None
    parts_at: int | None = None

    def find(self) -> bool:
        best: tuple[int, list[Explanation]] = (-1, [])
        n_entries = len(self.device.trace)
        budget = max(STEPS, DRIVES * n_entries)
        while (diverged_at := self._drive()) is not None:
            if diverged_at > best[0]:
                best = diverged_at, list(self.path)
            budget -= n_entries
            # Another limit collects garbage at other requests, so all choices start again.
            if budget >= 0 and self.threshold is not None and self.threshold.choose_limit():
                self.path, self.choices, best = [], {}, (-1, [])
                continue
            if budget < 0 or not self._choose_again(diverged_at):
                self.path = best[1]
                self._drive(is_checked=False)
                return False
        return True

    def check_device(self) -> int:
        # Returns the number of refused requests if empty_cache calls would explain the recording
        # too, else 0.  If the recording does not fit the device, `path` is changed: no request was
        # refused.
        refused = [each.refused for each in self.path if each.refused is not None]
        if self.facts.memory is not None or not refused:
            return 0
        # The largest device that refuses all these requests.
        assumed = min(refused) - PAGE
        called = [
            each if each.refused is None else called_explanation(gap)
            for gap, each in zip(self.gaps, self.path, strict=True)
        ]
        is_possible = self.facts.max_reserved <= assumed
        fits = is_possible and self._holds(self.path, assumed)
        if self.facts.empties and self._holds(called, None):
            if fits:
                return len(refused)
            self.path = called
        elif not is_possible:
            self.path = [replace(each, refused=None) for each in self.path]
        return 0

    def _holds(self, path: list[Explanation], memory: int | None) -> bool:
        other = replace(self, path=path, facts=replace(self.facts, memory=memory))
        return other._drive() is None

    def _choose_again(self, diverged_at: int) -> bool:
        before = sorted((gap for gap in self.choices if gap <= diverged_at), reverse=True)
        for gap in before[:LOOK_BACK]:
            choice = self.choices[gap]
            if choice.taken + 1 < choice.ways:
                self.choices = {n: each for n, each in self.choices.items() if n < gap}
                self.choices[gap] = _Choice(choice.taken + 1, choice.ways)
                del self.path[gap:]
                return True
        return False

    def _drive(self, *, is_checked: bool = True) -> int | None:
        # Returns the number of the gap whose explanation must be wrong, or None if the replay
        # equals the recording.
        device, trace = self.device, self.device.trace
        check = FidelityCheck(trace)
        allocator = device.allocator(
            device.recorded,
            self.facts.memory,
            address_policy="bump",
            base_address=round_up(device.last_address, TIB),
            record_history=True,
            limit=None if self.threshold is None else self.threshold.in_force,
        )
        drive = _Along(allocator, self.plan, len(trace), dictates=True, fidelity=check)
        at = gap = 0
        try:
            for gap, place in enumerate(self.places):
                drive.plain(at, place)
                at = place
                if is_checked and drive.has_diverged:
                    return gap - 1  # the explanation before these plain steps is wrong
                drive.explained(
                    self._explanation(gap, allocator).steps,
                    None if self.threshold is None else self._watched(gap, self.threshold),
                )
                if is_checked and drive.has_diverged:
                    return gap
            drive.plain(at, len(self.plan.steps))
        except AllocsimError:
            # PyTorch would have failed at these steps, so they did not happen.
            if is_checked:
                return gap
            self.path += [plain_explanation(each) for each in self.gaps[len(self.path) :]]
        if not is_checked:
            mismatch = check.result(allocator).first_mismatch
            self.parts_at = None if mismatch is None else mismatch.entry
            return None
        return None if not drive.has_diverged and check.result(allocator).is_exact else gap

    def _watched(self, gap: int, threshold: Threshold) -> Watch:
        return lambda allocator: threshold.learn(self.gaps[gap], allocator)

    def _explanation(self, gap: int, allocator: ReplayAllocator) -> Explanation:
        if gap == len(self.path):
            ways = explanations(self.gaps[gap], allocator, self.facts)
            if len(ways) > 1:
                self.choices.setdefault(gap, _Choice(0, len(ways)))
            self.path.append(ways[self.choices[gap].taken if gap in self.choices else 0])
        return self.path[gap]
