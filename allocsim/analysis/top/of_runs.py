"""Owners of memory (lines of code or categories), for the output of `replay` and `fit`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from allocsim.analysis.top.top import Top, top_of_run
from allocsim.ownership import scene_of_run
from allocsim.replaying import Prepared
from allocsim.simulation import DeviceRun, Run

if TYPE_CHECKING:
    from allocsim.fitting import Fit


def top_of_replay(devices: Sequence[Prepared], run: Run) -> Top | None:
    """Return the lines of code that hold memory at the out-of-memory error, or else at the peak.

    None for a what-if replay, or if nothing was allocated.
    """
    pairs = [
        (prepared, device_run)
        for prepared, device_run in zip(devices, run.devices, strict=True)
        if device_run.fidelity is not None and device_run.peak_allocated_bytes
    ]
    if not pairs:
        return None
    prepared, device_run = max(
        pairs, key=lambda pair: (bool(pair[1].ooms), pair[1].peak_allocated_bytes)
    )
    return top_of_run(prepared, device_run)


def top_of_spill(
    devices: Sequence[Prepared], runs: Sequence[DeviceRun], by: str = "line"
) -> Top | None:
    """Return the owners of memory that the driver moved to the host because the card was full.

    None if nothing was moved, or if most was moved before the first entry.
    """
    pairs = [
        (device_run.spill.most_bytes, prepared, device_run, device_run.spill)
        for prepared, device_run in zip(devices, runs, strict=True)
        if device_run.spill is not None and device_run.spill.began is not None
    ]
    if not pairs:
        return None
    _, prepared, device_run, spill = max(pairs, key=lambda pair: pair[0])
    if spill.worst < 0:
        return None
    return top_of_run(prepared, device_run, spill.worst, by=by, since=spill.began or 0)


def tops_of_fit(found: Fit) -> tuple[Top, Top | None, Top | None]:
    """Return the memory of a simulated run by category, at up to three moments.

    The moments are the peak, the entry with the most memory that the driver moved to the host (None
    if it moved none), and the failed request (None if none failed).
    """
    ran, failure = found.ran, found.failure
    scene = scene_of_run(ran.prepared.trace, ran.prepared.start, ran.device_run.timeline)
    top_at = partial(top_of_run, ran.prepared, ran.device_run, by="category", scene=scene)
    peak = top_at(ran.busiest)
    spilled = failed = None
    if found.unlimited is not None and found.lent is not None:
        spilled = top_of_spill([found.unlimited.prepared], [found.lent], by="category")
    if failure is not None:
        failed = peak if failure.entry == ran.busiest else top_at(failure.entry)
    return peak, spilled, failed
