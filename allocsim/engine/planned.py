"""Plan of a device whose size may be unknown.

The room that an expandable segment has to grow depends on the device (semantics 4.1).  If the size
is unknown and an unlimited device does not reproduce the recording, the smallest size in whole GiB
is tried, then the smallest in half GiB.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from allocsim.engine.plan import Plan
from allocsim.engine.reading import read_plan
from allocsim.units import GIB, TIB, round_up

if TYPE_CHECKING:
    from allocsim.engine.prepared import Prepared

__all__ = ["plan_of"]


def plan_of(prepared: Prepared) -> Plan:
    """Return the plan of a recording under the release that wrote it."""
    plan = _read(prepared, prepared.named_memory)
    expands = prepared.config.expandable_segments
    if plan.is_whole or not expands or prepared.capacity_of(plan):
        return plan
    for memory in (round_up(plan.max_reserved, step) for step in (GIB, GIB // 2)):
        found = _read(prepared, memory, is_assumed=True)
        if found.is_whole:
            return replace(found, fits=memory)
    return plan


def _read(prepared: Prepared, memory: int | None, *, is_assumed: bool = False) -> Plan:
    """Read the plan.  For a captured recording, first try without an inferred limit."""
    is_assumed |= prepared.assumed_memory is not None and not prepared.recorded_memory
    base = round_up(prepared.last_address, TIB)
    noted = () if prepared.provenance is None else (None,)
    for collects_at in dict.fromkeys((*noted, prepared.collects_at)):
        plan = read_plan(
            prepared.trace,
            prepared.held,
            lambda memory, limit: prepared.allocator(
                prepared.recorded,
                memory,
                address_policy="bump",
                base_address=base,
                record_history=True,
                limit=limit,
            ),
            memory,
            is_assumed=is_assumed,
            collects_at=collects_at,
            marks=prepared.marks,
            empties=prepared.hints.empties,
            is_made=prepared.is_made,
        )
        if plan.is_whole:
            break
    return plan
