"""Why a request found no memory, as far as the figures of the moment prove it.

Rule: a cause is named by the first comparison that holds, in the order of `CAUSES`; where a
figure is unknown its comparison is left out, and with nothing to compare it is `no_figures`.
A run of several devices tells one device's memory, so there free memory counts as known only
if PyTorch's own text shows the same number.
"""

from __future__ import annotations

from dataclasses import dataclass

from allocsim.engine import DeviceRun, Run, SimulatedOom
from allocsim.units import format_size

__all__ = ["CAUSES", "Shortage", "shortages_of"]

CAUSES = (
    "impossible",
    "fraction_limit",
    "free_above_request",
    "fragmentation",
    "fragmentation_likely",
    "full",
    "no_figures",
)


@dataclass(frozen=True, slots=True)
class Shortage:
    """One out-of-memory error with the memory there was, in bytes.

    tried_bytes: the segment asked from the driver.  total_bytes, free_bytes: of the device,
    None where unknown.  idle_bytes: reserved and not allocated, pending frees included, as in
    PyTorch's text.
    """

    oom: SimulatedOom
    cause: str
    tried_bytes: int
    total_bytes: int | None
    allocated_bytes: int
    reserved_bytes: int
    free_bytes: int | None

    @property
    def idle_bytes(self) -> int:
        """Reserved but unallocated."""
        return self.reserved_bytes - self.allocated_bytes

    @property
    def within_reach_bytes(self) -> int | None:
        """Idle and free together; None where the free memory is unknown."""
        return None if self.free_bytes is None else self.idle_bytes + self.free_bytes


def shortages_of(run: Run, device_run: DeviceRun) -> tuple[Shortage, ...]:
    """Every out-of-memory error of one device of `run`, in order."""
    return tuple(_shortage(run, device_run, oom) for oom in device_run.ooms)


def _shortage(run: Run, device_run: DeviceRun, oom: SimulatedOom) -> Shortage:
    allocated, reserved = _memory_at(device_run, oom)
    total = run.device_memory
    free = None if total is None else total - reserved
    if free is not None and len(run.devices) > 1 and format_size(free) not in oom.message:
        total = free = None
    return Shortage(
        oom=oom,
        cause=_cause(oom, total, free, reserved - allocated),
        tried_bytes=oom.tried_bytes or oom.rounded_bytes,
        total_bytes=total,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        free_bytes=free,
    )


def _memory_at(device_run: DeviceRun, oom: SimulatedOom) -> tuple[int, int]:
    """Allocated and reserved bytes when the error was raised, after the caches were released."""
    if oom.entry == device_run.stopped_at:
        stats = device_run.stats
        return stats["allocated_bytes.all.current"], stats["reserved_bytes.all.current"]
    timeline = device_run.timeline
    row = int(timeline.entry.searchsorted(oom.entry, side="right")) - 1
    return int(timeline.allocated[row]), int(timeline.reserved[row])


def _cause(oom: SimulatedOom, total: int | None, free: int | None, idle: int) -> str:
    if total is not None and oom.rounded_bytes > total:
        return "impossible"
    if " allowed; " in oom.message or "per_process_memory_fraction limit" in oom.message:
        return "fraction_limit"
    if free is not None and (oom.tried_bytes or oom.rounded_bytes) <= free:
        return "free_above_request"
    if idle >= oom.rounded_bytes:
        return "fragmentation"
    if free is None:
        return "no_figures"
    return "fragmentation_likely" if idle + free >= oom.rounded_bytes else "full"
