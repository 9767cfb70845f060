"""Plan of a device whose size may be unknown.

The room that an expandable segment has to grow depends on the device (semantics 4.1).  If the size
is unknown and an unlimited device does not reproduce the recording, the smallest size in whole GiB
is tried, then the smallest in half GiB.
"""

from __future__ import annotations

from dataclasses import replace

from allocsim.inference.search import read_plan
from allocsim.simulation import Plan, RecordedDevice
from allocsim.units import GIB, TIB, round_up

__all__ = ["plan_of"]


def plan_of(device: RecordedDevice) -> Plan:
    """Return the plan of a recording, replayed under the release that wrote it.

    The room that an expandable segment has to grow depends on the device (semantics 4.1).  If the
    size is unknown and an unlimited device does not reproduce the recording, the smallest possible
    size in whole GiB is tried, then the smallest in half GiB.
    """
    plan = _read(device, device.named_memory)
    expands = device.config.expandable_segments
    if plan.is_whole or not expands or device.capacity_of(plan):
        return plan
    for memory in (round_up(plan.max_reserved, step) for step in (GIB, GIB // 2)):
        found = _read(device, memory, is_assumed=True)
        if found.is_whole:
            return replace(found, fits=memory)
    return plan


def _read(device: RecordedDevice, memory: int | None, *, is_assumed: bool = False) -> Plan:
    """Read the plan.  If the recording has a provenance, first try without an inferred limit."""
    is_assumed |= device.assumed_memory is not None and not device.recorded_memory
    base = round_up(device.last_address, TIB)
    noted = () if device.provenance is None else (None,)
    for collects_at in dict.fromkeys((*noted, device.collects_at)):
        plan = read_plan(
            device.trace,
            device.held,
            lambda memory, limit: device.allocator(
                device.recorded,
                memory,
                address_policy="bump",
                base_address=base,
                record_history=True,
                limit=limit,
            ),
            memory,
            is_assumed=is_assumed,
            collects_at=collects_at,
            marks=device.marks,
            empties=device.hints.empties,
            is_made=device.is_made,
        )
        if plan.is_whole:
            break
    return plan
