"""Range of a what-if's peak, over the programs that would have left the same recording.

A call of empty_cache that releases nothing leaves no entry, but it may release memory under another
setting.  So a recording can come from several programs, which would have different peaks under that
setting.  The range is the lowest and highest peak of replays with these variations:

- more calls of empty_cache at quiet moments (points where a call leaves no entry): one replay has a
  call at every quiet moment, others have calls at random quiet moments.  If the recording shows no
  call at all, these replays are made only if the share of quiet moments is at least `HIDING`;
- the lowest and the highest possible memory limit, if it is known only from garbage collections;
- other plausible addresses of segments, which decide among free blocks of equal size.

Only some of the possible variations are replayed, so the real peak may be outside the range.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import dropwhile

from allocsim.collector import collector_paused
from allocsim.core import FreeBlockOrder
from allocsim.errors import ConfigError, UndefinedBehaviorError, UpstreamError
from allocsim.inference import OtherPlan, leaves_open, moments_of, needs_quiet_moments
from allocsim.replaying.baseline import needs_probe, parting_of
from allocsim.replaying.notes import address_range_note, open_notes
from allocsim.replaying.prepared import Prepared, has_two_starts
from allocsim.simulation import (
    Addresses,
    DeviceRun,
    LeftOpen,
    Plan,
    Run,
    Setting,
    Start,
    StartPeaks,
    fold_allocated,
)
from allocsim.state import DEFAULT_POOL

_NO_RUN = (ConfigError, UndefinedBehaviorError, UpstreamError)


def moments_of_calls(prepared: Prepared, setting: Setting) -> Sequence[int] | None:
    """Return the plan steps (indices) after which an empty_cache call may have left no entry.

    Such a call released nothing in the recorded run, but may release memory under `setting`.

    Returns None for the recorded setting, under which it would again release nothing.  Also returns
    None if the program uses private pools or changes its settings, because a call could then do
    more than release memory.
    """
    plan = prepared.free_plan
    has_pools = plan.pools or any(segment.pool_id != DEFAULT_POOL for segment in prepared.start)
    if prepared.is_recorded(setting) or has_pools or plan.changes:
        return None
    if not needs_quiet_moments(prepared, plan):
        return []
    if needs_probe(prepared) and not prepared.quiet_of_proof:
        return moments_of(plan)
    return sorted({at for other in prepared.open_plans for at in other.calls})


def peaks_by_plan(
    prepared: Prepared,
    setting: Setting,
    device_memory: int | None,
    loud: frozenset[int] | None = None,
    peak: int | None = None,
) -> tuple[int, int] | None:
    """Return the lowest and highest peak reserved bytes over programs with the same recording.

    The programs differ in their memory limit, or in calls of empty_cache that left no entry.
    Returns None if the setting is the recorded one, or if there is no other program.

    loud: steps of a finished what-if after which empty_cache would have released memory; None if
        unknown.
    peak: peak reserved bytes of that what-if; None if an out-of-memory error ended it.
    """
    if prepared.is_recorded(setting):
        return None
    plan = prepared.free_plan
    own_limit = prepared.limit_for(setting, device_memory, plan)
    found: dict[Hashable, int | None] = {}
    for other in prepared.open_plans:
        base, calls = other.base, other.calls
        limit = prepared.limit_for(setting, device_memory, base)
        if loud is not None and base.steps is plan.steps and limit == own_limit:
            # Up to the first call that releases memory, this replay equals that of `free_plan`.
            calls = tuple(dropwhile(lambda at: at not in loud, calls))
            if not calls:
                found[()] = peak
                continue
        key = id(base.steps), limit, calls
        if key not in found:
            plan_of_calls = OtherPlan(base, calls).plan()
            found[key] = _peak(prepared, setting, device_memory, plan=plan_of_calls)
    return range_of(found.values())


def peaks_by_address(
    prepared: Prepared, setting: Setting, device_memory: int | None
) -> tuple[int, int] | None:
    """Return the lowest and highest peak reserved bytes over other plausible segment addresses.

    Returns None for the recorded setting, or if addresses do not affect the peak.
    """
    by_address = prepared.release.free_block_order is FreeBlockOrder.ADDRESS
    if not by_address or prepared.is_recorded(setting):
        return None
    return range_of(
        _peak(prepared, setting, device_memory, addresses=other)
        for other in prepared.addresses.others()
    )


def _peak(
    prepared: Prepared,
    setting: Setting,
    device_memory: int | None,
    *,
    plan: Plan | None = None,
    addresses: Addresses | None = None,
) -> int | None:
    try:
        drive = prepared.drive(
            setting, device_memory, folder=fold_allocated, plan=plan, addresses=addresses
        )
    except _NO_RUN:
        return None
    if drive.stopped_at is not None:
        return None
    return drive.allocator.statistics().all.reserved_bytes.peak


def range_of(found: Iterable[int | None]) -> tuple[int, int] | None:
    peaks = [peak for peak in found if peak is not None]
    return (min(peaks), max(peaks)) if peaks else None


def peaks_by_start(
    prepared: Prepared, setting: Setting, device_memory: int | None, shown: Start, peak: int | None
) -> StartPeaks | None:
    """Return the peaks of what-ifs that start with the recorded segments, and empty.

    Returns None if only one of these start states is possible.

    shown, peak: start state and peak of a finished what-if; this function replays from the other.
    """
    if not has_two_starts(prepared, setting):
        return None
    other = Start.REALLOCATED if shown is Start.KEPT else Start.KEPT
    found: int | None = None
    try:
        drive = prepared.drive(
            setting, device_memory, skips=True, folder=fold_allocated, start=other
        )
    except _NO_RUN:
        pass  # this start is impossible under the setting
    else:
        is_whole = drive.stopped_at is None
        found = drive.allocator.statistics().all.reserved_bytes.peak if is_whole else None
    by_start = {shown: peak, other: found}
    return StartPeaks(shown, kept=by_start[Start.KEPT], anew=by_start[Start.REALLOCATED])


def with_range(run: Run) -> Run:
    """Compute the range of each device's peak, by replays if necessary, and return `run`.

    The range is `DeviceRun.left_open`.
    """
    for each in run.devices:
        each.find_left_open()
    return run


@collector_paused()
def left_open(
    prepared: Prepared,
    setting: Setting,
    run: DeviceRun,
    loud: frozenset[int] | None,
    *,
    tries_addresses: bool,
) -> LeftOpen | None:
    """Replay other plans (steps) and addresses that fit the recording; return the range of peaks.

    Returns None if no replay has another peak than `run`.  But if the recording is known to hide
    the exact memory limit or calls of empty_cache, and other plans have the same peak, returns a
    range of one value.

    run: finished what-if under `setting`.
    loud: steps after which empty_cache would have released memory in `run`; None if unknown.
    tries_addresses: vary the addresses of segments too.
    """
    if needs_probe(prepared):
        parting_of(prepared)  # also finds the quiet moments
    peak = None if run.stopped_at is not None else run.peak_reserved_bytes
    ranges: list[tuple[int, int]] = []
    notes: list[str] = []
    hidden = peaks_by_plan(prepared, setting, run.device_memory, loud, peak)
    # A range of one value equal to the peak is noted only if calls or a limit are known
    # to be uncertain.
    if hidden is not None and (hidden != (peak, peak) or leaves_open(prepared, prepared.plan)):
        ranges.append(hidden)
        notes += open_notes(prepared, run.peak_range_with(hidden))
    if tries_addresses:
        placed = peaks_by_address(prepared, setting, run.device_memory)
        if placed is not None and placed != (peak, peak):
            ranges.append(placed)
            notes.append(address_range_note(placed, peak))
    if not ranges:
        return None
    lows, highs = zip(*ranges, strict=True)
    return LeftOpen((min(lows), max(highs)), tuple(notes))
