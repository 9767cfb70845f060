"""Owners of the memory (lines of code or categories) at the moment that a command reports.

Rule: owners are known for the recorded run only. Blocks of a what-if replay have no stacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from allocsim.analysis.top import Top
    from allocsim.fitting import Fit
    from allocsim.replaying import Prepared
    from allocsim.simulation import DeviceRun, Run


def owners_of(devices: Sequence[Prepared], run: Run) -> Top | None:
    """Return the owners of the memory of one device, at its error or else at its peak.

    It is the device that ran out of memory, else the one with the highest peak. Returns None for a
    what-if replay, or if nothing was allocated.
    """
    from allocsim.analysis.top import top_of_run  # noqa: PLC0415

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


def spilled_owners_of(
    devices: Sequence[Prepared], runs: Sequence[DeviceRun], by: str = "line"
) -> Top | None:
    """Return the owners of memory requested after the card was full, when most of it was spilled.

    Spilled memory is kept in host memory by the driver. The device is the one with the most spilled
    memory.

    by: kind of owner, "line" or "category".
    Returns None if nothing spilled, or most was spilled before the first entry.
    """
    from allocsim.analysis.top import top_of_run  # noqa: PLC0415

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


def held_at_peak(found: Fit) -> Top:
    from allocsim.analysis.top import top_of_run  # noqa: PLC0415

    ran = found.ran
    return top_of_run(ran.prepared, ran.device_run, ran.busiest, by="category")


def held_at_failure(found: Fit) -> Top | None:
    """Return the memory by category at the failed request of a run; None if none failed."""
    from allocsim.analysis.top import top_of_run  # noqa: PLC0415

    failure, ran = found.failure, found.ran
    if failure is None:
        return None
    return top_of_run(ran.prepared, ran.device_run, failure.entry, by="category")


def spilled_in_fit(found: Fit) -> Top | None:
    """Return the memory that a simulated run requested after the card was full, by category.

    Return None if nothing was spilled to host memory.
    """
    if found.unlimited is None or found.lent is None:
        return None
    return spilled_owners_of([found.unlimited.prepared], [found.lent], by="category")
