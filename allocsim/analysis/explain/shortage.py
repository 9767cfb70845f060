"""Cause of an out-of-memory error of a recording, and the live blocks that prevent the request.

The sizes at the error determine the cause (`cause_of`), unless the blocks prove another one:

- pending_free: a freed block, alone or merged with its neighbours, was large enough for the
  request, but still waited for another stream.  The pool is not searched again after the wait
  (semantics.md, section 1.8).
- private_pool: idle memory of a private pool is large enough, but the request may not use it.

`impossible` and `host_fallback` have precedence over both causes.  `fraction_limit` and
`free_above_request` have precedence over `private_pool` only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from allocsim.analysis.explain.cause import MESSAGE_CAUSES, Figures, cause_of
from allocsim.analysis.explain.state_at_error import Blockers, StateAtError, blockers_of, kinds_of
from allocsim.core import Block, CachingAllocator
from allocsim.metrics import Code, code_at
from allocsim.recommend import Overflow
from allocsim.recording import Action, Trace
from allocsim.replaying import Prepared
from allocsim.simulation import DeviceRun, Observer, SimulatedOom
from allocsim.state import ALLOCATED, DEFAULT_POOL, INACTIVE
from allocsim.units import format_size

CAUSES = (*MESSAGE_CAUSES[:-1], "pending_free", "private_pool", MESSAGE_CAUSES[-1])

MOST_WATCHED = 200
"""Maximum number of errors in a replay at which blocks are examined; later ones have only sizes."""


@dataclass(frozen=True, slots=True)
class Findings:
    """Uses of the device's memory at an error, and the blocks that prevent the request.

    kinds: dictionary from each use of memory in `KINDS` to bytes; the sum is the device's memory.
    largest_request_bytes: largest request that would have succeeded.
    late_bytes: size of a suitable block that became free only while the request was failing; 0 if
        there is none.
    holds_in_private_pool: True if idle memory of a private pool would have been enough.
    blockers: cheapest set of live blocks to free; None if there is no such set.
    recorded_addresses: dictionary from the address of each block in use to its recorded address.
    """

    kinds: dict[str, int]
    largest_request_bytes: int
    late_bytes: int
    holds_in_private_pool: bool
    blockers: Blockers | None
    recorded_addresses: Mapping[int, int]


class OomWatch(Observer):
    """Observer of a replay; it examines the blocks at each out-of-memory error.

    findings: dictionary from (device number, entry of the error) to the results for that error.
    """

    def __init__(self, devices: Iterable[Prepared] = ()) -> None:
        self._others = {each.trace.device: each.others_memory for each in devices}
        self.findings: dict[tuple[int, int], Findings] = {}

    def out_of_memory(
        self, allocator: CachingAllocator, oom: SimulatedOom, blocks: Mapping[int, Block]
    ) -> None:
        if len(self.findings) >= MOST_WATCHED:
            return
        others = self._others.get(allocator.device_index, 0)
        state = StateAtError.of(allocator, oom.rounded_bytes, oom.stream, blocks, others)
        self.findings[allocator.device_index, oom.entry] = findings_of(state)


@dataclass(frozen=True, slots=True)
class Blocker:
    """Live block that must be freed for a failed request to succeed.

    entry: entry of the allocation; None if the block is older than the recording.
    age: number of entries between allocation and error; None if `entry` is None.
    code: code that requested the block; None if unknown.
    """

    address: int
    size: int
    requested_bytes: int
    entry: int | None = None
    age: int | None = None
    code: Code | None = None


@dataclass(frozen=True, slots=True)
class Shortage:
    """One out-of-memory error of a recording.

    oom: the error as the replay met it.
    cause, figures: name of the cause, and the sizes that decide it.
    findings: uses of memory at the error; None if no `OomWatch` observed the replay.
    blockers: live blocks to free so that the request succeeds, largest first.
    code: code of the failed request; None if unknown.
    """

    oom: SimulatedOom
    cause: str
    figures: Figures
    findings: Findings | None
    blockers: tuple[Blocker, ...]
    code: Code | None

    @property
    def missing_bytes(self) -> int | None:
        """Bytes that the request needs beyond idle and free memory, if the cause is "full".

        None for other causes.
        """
        reach = self.figures.idle_and_free if self.cause == "full" else None
        return None if reach is None else self.tried_bytes - reach

    @property
    def tried_bytes(self) -> int:
        """Bytes requested from the driver, or the rounded request if the driver was not called."""
        return self.oom.tried_bytes or self.oom.rounded_bytes

    @property
    def idle_bytes(self) -> int:
        """Reserved but unallocated bytes, including pending frees, as in PyTorch's text."""
        return self.oom.reserved_bytes - self.oom.allocated_bytes


def shortages_of(
    device_run: DeviceRun, trace: Trace | None = None, watch: OomWatch | None = None
) -> tuple[Shortage, ...]:
    """Return every out-of-memory error in the replay of one device, in order.

    For a replay under the recorded settings, recorded errors whose request succeeds in the replay
    are included.  Their cause is not in the recording: a memory fraction set while the program ran,
    another process, or the driver.

    trace: recording of the device; if None, errors whose request succeeds in the replay are left
        out, and every `code` is None.
    watch: observer that examined the blocks during the replay; None if there was none.
    """
    ooms = list(device_run.ooms)
    if trace is not None and device_run.fidelity is not None:
        ooms = sorted([*ooms, *_answered(device_run, trace)], key=lambda oom: oom.entry)
    return tuple(_shortage(device_run, oom, trace, watch) for oom in ooms)


def _answered(device_run: DeviceRun, trace: Trace) -> Iterator[SimulatedOom]:
    failed = {oom.entry for oom in device_run.ooms}
    timeline = device_run.timeline
    for entry in np.flatnonzero(trace.action[: device_run.stopped_at] == Action.OOM).tolist():
        row = int(timeline.entry.searchsorted(entry)) - 1
        if entry in failed or row < 0:
            continue
        reserved, free = int(timeline.reserved[row]), int(trace.addr[entry])
        yield SimulatedOom(
            entry=entry,
            requested_bytes=None,
            rounded_bytes=int(trace.size[entry]),
            tried_bytes=0,
            message="",
            is_recorded=True,
            stream=int(trace.stream[entry]),
            total_bytes=reserved + free,
            free_bytes=free,
            allocated_bytes=int(timeline.allocated[row]),
            reserved_bytes=reserved,
            limit_bytes=None,
        )


def _shortage(
    device_run: DeviceRun, oom: SimulatedOom, trace: Trace | None, watch: OomWatch | None
) -> Shortage:
    findings = None if watch is None else watch.findings.get((device_run.device, oom.entry))
    is_known = device_run.device_memory is not None
    figures = Figures(
        tried_bytes=oom.tried_bytes or oom.rounded_bytes,
        total_bytes=oom.total_bytes if is_known else None,
        allocated_bytes=oom.allocated_bytes,
        reserved_bytes=oom.reserved_bytes,
        idle_bytes=oom.reserved_bytes - oom.allocated_bytes,
        free_bytes=oom.free_bytes if is_known else None,
        limit_bytes=oom.limit_bytes,
    )
    blockers: tuple[Blocker, ...] = ()
    if findings is not None and findings.blockers is not None:
        blockers = _resolved(findings, findings.blockers, trace, oom.entry)
    code = None if trace is None else code_at(trace, oom.entry)
    return Shortage(oom, most_specific_cause(figures, findings), figures, findings, blockers, code)


def too_small(over: Overflow, entry: int) -> str:
    """Return a sentence that more memory is in use than a device has.

    entry: index of the history entry of the error.
    """
    when = "later" if over.entry > entry else "earlier"
    return (
        f"The device is too small for the whole recording: {when}, at entry {over.entry:,}, "
        f"{format_size(over.live_bytes)} are needed at once, and the device has "
        f"{format_size(over.room_bytes)} for PyTorch."
    )


def most_specific_cause(figures: Figures, findings: Findings | None) -> str:
    by_figures = cause_of(figures)
    if findings is None or by_figures in ("impossible", "host_fallback"):
        return by_figures
    if findings.late_bytes:
        return "pending_free"
    is_narrower = by_figures not in ("fraction_limit", "free_above_request")
    return "private_pool" if is_narrower and findings.holds_in_private_pool else by_figures


def findings_of(state: StateAtError) -> Findings:
    return Findings(
        kinds=kinds_of(state),
        largest_request_bytes=state.largest_request_bytes,
        late_bytes=_largest_pending_or_free(state),
        holds_in_private_pool=_holds_in_private_pool(state),
        blockers=blockers_of(state),
        recorded_addresses=state.recorded_addresses,
    )


def _largest_pending_or_free(state: StateAtError) -> int:
    usable = [segment for segment in state.segments if state.may_use(segment)]
    runs = (
        sum(block.size for block in run)
        for segment in usable
        for is_live, run in groupby(segment.blocks, key=lambda block: block.state == ALLOCATED)
        if not is_live
    )
    return max((size for size in runs if state.accepts(size)), default=0)


def _holds_in_private_pool(state: StateAtError) -> bool:
    usable = (DEFAULT_POOL, state.pool_id, *state.helping_pools)
    private = [segment for segment in state.segments if segment.pool_id not in usable]
    free = [block.size for s in private for block in s.blocks if block.state == INACTIVE]
    if max(free, default=0) >= state.rounded_bytes:
        return True
    lasting = [s for s in private if s.is_idle and s.pool_id not in state.returnable_pools]
    kept = sum(map(state.driver_bytes, lasting))
    return bool(kept) and kept + state.free_bytes >= state.tried_bytes


def _resolved(
    findings: Findings, blockers: Blockers, trace: Trace | None, entry: int
) -> tuple[Blocker, ...]:
    recorded = findings.recorded_addresses
    addresses = [recorded[b.address] for b in blockers.blocks if b.address in recorded]
    made = {} if trace is None else _made(trace, entry, addresses)
    found = []
    for block in sorted(blockers.blocks, key=lambda block: (-block.size, block.address)):
        blocker = Blocker(block.address, block.size, block.requested_size)
        maker = made.get(recorded.get(block.address, -1))
        if trace is not None and maker is not None:
            code = code_at(trace, maker)
            blocker = replace(blocker, entry=maker, age=entry - maker, code=code)
        found.append(blocker)
    return tuple(found)


def _made(trace: Trace, entry: int, addresses: list[int]) -> dict[int, int]:
    is_wanted = np.isin(trace.addr[:entry], np.array(addresses, dtype=np.uint64))
    entries = np.flatnonzero((trace.action[:entry] == Action.ALLOC) & is_wanted)
    # A later allocation at the same address overwrites an earlier one.
    return {int(trace.addr[i]): int(i) for i in entries.tolist()}
