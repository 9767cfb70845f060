"""Who held the memory at the moment that an answer is about.

Rule: it is told of the recorded run only, since blocks of another run have no owners of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from allocsim.engine import DeviceRun, Prepared, Run
    from allocsim.questions.top import Top

__all__ = ["owners_of", "spilled_owners_of"]


def owners_of(devices: Sequence[Prepared], run: Run) -> Top | None:
    """Of the device that failed, at its last error; else of the fullest at its peak.

    None where the run is not as recorded, or nothing was allocated.
    """
    from allocsim.questions.top import top_of_run  # noqa: PLC0415

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
    """Of the device that spilled most: who holds, where most is spilled, what was asked for once
    the card was full.  None if nothing spilled after the first entry."""
    from allocsim.questions.top import top_of_run  # noqa: PLC0415

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
