"""Replay of a law's program on the allocator model, at given sizes.

Rule: only the bytes of requests change. Order, freed blocks, streams and pools are those of the
    first sample.
"""

from __future__ import annotations

from dataclasses import replace

from allocsim.fitting.scale.law import Law, Requested
from allocsim.simulation import Drive, Plan, Setting, fold_allocated

__all__ = ["drive_at", "plan_at"]


def plan_at(law: Law, requested: Requested) -> Plan:
    """Return the steps of the law's program with the requests' bytes in `requested`."""
    program = law.program
    size = program.steps.size.copy()
    size[program.requests] = requested.size
    return replace(program.prepared.free_plan, steps=replace(program.steps, size=size))


def drive_at(law: Law, plan: Plan, setting: Setting, device_memory: int | None) -> Drive:
    """Replay `plan` to its end or to an error. Raises ConfigError for a refused setting.

    device_memory: bytes of the device, None for an unlimited device.
    """
    prepared = law.program.prepared
    return prepared.drive(setting, device_memory, plan=plan, folder=fold_allocated)
