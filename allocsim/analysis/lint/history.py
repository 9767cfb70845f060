"""Checks of the entries: lost entries, mixed processes, clock changes and shared devices.

A finding reports only facts that the recording proves.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from itertools import combinations, pairwise

import numpy as np

from allocsim.analysis.lint.finding import Finding, entry_text, found
from allocsim.core import PAGE
from allocsim.recording import Action, Defect, Recording, Trace
from allocsim.state import INACTIVE, SegmentState
from allocsim.units import format_size

_LEAP = timedelta(days=1)
"""Gap between two entries that indicates a clock change rather than an idle program."""


def about_history(trace: Trace, start: tuple[SegmentState, ...]) -> Iterator[Finding]:
    """Yield findings about a consistent trace; `start` has the segments before its first entry."""
    yield from _leaps(trace)
    yield from _other_holders(trace, start)
    requests = trace.action == Action.ALLOC
    if np.any(requests) and not np.any(trace.frames[requests] >= 0):
        n = int(np.count_nonzero(requests))
        yield found("stacks", f"none of {n:,} requests has a stack", device=trace.device)


def lost_entries(trace: Trace, start: tuple[SegmentState, ...]) -> Finding | None:
    """Return a finding if entries before the first recorded entry were lost, else None.

    PyTorch stores the stack of a block only while it records.  So a block with a stack from before
    the first entry had an entry, which was lost.
    start: segments before the first entry.
    """
    there = [block for segment in start for block in segment.blocks if block.state != INACTIVE]
    stacked = [block for block in there if block.frames >= 0]
    if not stacked:
        return None
    size = format_size(sum(block.size for block in stacked))
    text = (
        f"{len(stacked):,} of {len(there):,} blocks ({size}) from before the first entry have a "
        f"stack, so they were recorded and their entries are lost: the {len(trace):,} remaining "
        "entries are from a full ring or a restarted recording"
    )
    first = entry_text(trace[0]) if len(trace) else ""
    return found("ring", text, device=trace.device, entry=0 if first else None, value=first)


def _leaps(trace: Trace) -> Iterator[Finding]:
    """Yield a finding if the times of the entries show that the clock was set forward."""
    if trace.time_us is None:
        return
    ahead = np.diff(trace.time_us)
    leaps = np.flatnonzero(ahead > _LEAP / timedelta(microseconds=1))
    if len(leaps):
        at = int(leaps[0]) + 1
        days = float(ahead[at - 1]) / (_LEAP / timedelta(microseconds=1))
        times = "once" if len(leaps) == 1 else f"{len(leaps)} times"
        text = f"time_us jumps ahead {times}, first at entry {at} by {days:.1f} days"
        yield found("clock", text, device=trace.device, entry=at, value=entry_text(trace[at]))


def _other_holders(trace: Trace, start: tuple[SegmentState, ...]) -> Iterator[Finding]:
    """Yield a finding if free plus reserved memory differs between two out-of-memory errors."""
    ooms = np.flatnonzero(trace.action == Action.OOM)
    if len(ooms) < 2:
        return
    reserved = trace.reserved_after(ooms, sum(segment.total_size for segment in start))
    sizes = (reserved + trace.addr[ooms].astype(np.int64)).tolist()
    for (_, before), (at, size) in pairwise(zip(ooms.tolist(), sizes, strict=True)):
        if abs(size - before) >= PAGE:
            text = (
                f"free plus reserved memory is {format_size(size)} at the error at entry {at}, and "
                f"{format_size(before)} at the previous error"
            )
            what = entry_text(trace[at])
            yield found("device_memory", text, device=trace.device, entry=at, value=what)
            return


def about_processes(recording: Recording, errors: dict[int, Defect]) -> Iterator[Finding]:
    """Yield findings that show several processes in one file.

    errors: first error of each inconsistent device, by device number.
    """
    if len(recording.processes) > 1:
        named = ", ".join(each or "one without a number" for each in recording.processes[:8])
        text = f"the file holds the events of {len(recording.processes)} processes: {named}"
        yield found("processes", text, value=recording.processes[1])
    for left, right in combinations(recording.devices, 2):
        both = _shared_address(left, right)
        if both is not None:
            text = (
                f"device {left.device} and device {right.device} both have a segment at "
                f"0x{both:x}, but devices of one process never share addresses"
            )
            yield found("processes", text, device=right.device, value=f"0x{both:x}")
            break
    for trace in recording.devices:
        if trace.device in errors and (at := _second_run(trace)) is not None:
            text = (
                f"entries 0 to {at - 1:,} and {at:,} to {len(trace) - 1:,} are each in order of "
                "time but contradict each other, as entries of two recordings do"
            )
            yield found(
                "processes", text, device=trace.device, entry=at, value=entry_text(trace[at])
            )


def _shared_address(left: Trace, right: Trace) -> int | None:
    """Return an address that is in segments of both devices, or None."""
    segments = sorted((*left.segments, *right.segments), key=lambda segment: segment.address)
    ours = {id(segment) for segment in left.segments}
    for a, b in pairwise(segments):
        if a.end > b.address and (id(a) in ours) != (id(b) in ours):
            return b.address
    return None


def _second_run(trace: Trace) -> int | None:
    """Return the entry at which time goes back, if that happens exactly once."""
    if trace.time_us is None:
        return None
    back = np.flatnonzero(np.diff(trace.time_us) < 0)
    return int(back[0]) + 1 if len(back) == 1 else None
