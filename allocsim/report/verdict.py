"""Verdict sentence of a replay: it fits, or the cause of its out-of-memory error."""

from __future__ import annotations

from collections.abc import Sequence

from allocsim.analysis.explain import Shortage
from allocsim.simulation import DeviceRun, TimelinePoint
from allocsim.units import format_size


def verdict_sentence(device: DeviceRun, shortages: Sequence[Shortage]) -> str:
    """Return a sentence: the replay of one device fits, or runs out of memory, and why."""
    parting = device.parting
    if shortages:
        is_unproved = parting is not None and parting.is_before(shortages[-1].oom.entry)
        return "unproved: " * is_unproved + _causes(shortages[-1])[shortages[-1].cause]
    unproved = "unproved: " if parting is not None else ""
    what = "it fits: no request failed"
    if device.spill is not None and device.spill.most_bytes:
        size = format_size(device.spill.most_bytes)
        what = f"no request failed, because {size} of host memory extend the card"
    if device.device_memory is None:
        what = "no request failed; the memory of the device is unknown"
    busiest = device.timeline.busiest
    if busiest is None:
        return f"{unproved}{what}."
    idle = _idle_part(busiest)
    return f"{unproved}{what}. At peak allocation, {idle} were unused."


def _idle_part(moment: TimelinePoint) -> str:
    """Return the unused part of reserved memory, e.g. "1.50 GiB of 2.00 GiB reserved".

    "all but 2.00 MiB of 2.00 GiB reserved" is for sizes that are equal after rounding.
    """
    idle, reserved = format_size(moment.idle), format_size(moment.reserved)
    if idle == reserved and moment.idle != moment.reserved:
        return f"all but {format_size(moment.reserved - moment.idle)} of {reserved} reserved"
    return f"{idle} of {reserved} reserved"


def _causes(shortage: Shortage) -> dict[str, str]:
    """Return the verdict sentence for each name of a cause, with the sizes of `shortage`."""
    tried = format_size(shortage.tried_bytes)
    idle = format_size(shortage.idle_bytes)
    free = shortage.figures.free_bytes
    free_text = "unknown" if free is None else format_size(free)
    reach = format_size(shortage.figures.within_reach or 0)
    held = format_size(shortage.oom.allocated_bytes)
    total = format_size(shortage.oom.total_bytes)
    return {
        "impossible": f"impossible. {tried} were requested at once, more than the whole device "
        f"has ({total}).",
        "host_fallback": f"more is allocated ({held}) than the device has ({total}).",
        "pending_free": f"a block was freed too late. {tried} were requested; a large enough "
        "block waited for another stream, and PyTorch does not search again after the wait.",
        "private_pool": f"a private pool holds the memory. {tried} were requested; the idle memory "
        "of a private pool (a CUDA graph, a MemPool) would have been enough.",
        "fraction_limit": f"a memory fraction was reached. PyTorch was limited to a part of "
        f"the device's {total}; {free_text} of the device were free.",
        "free_above_request": f"not the allocator. {tried} were requested with {free_text} free on "
        "the device: something outside PyTorch's allocator refused.",
        "fragmentation": f"fragmentation. {tried} were requested while PyTorch held {idle} "
        "idle: enough, but in pieces that are too small, or kept for another stream or pool.",
        "fragmentation_likely": f"fragmentation likely. {tried} were requested. {idle} idle "
        f"in PyTorch and {free_text} free on the device, {reach} together, would be enough, but "
        "not in one piece.",
        "full": f"the device is full. {tried} were requested. {idle} idle in PyTorch and "
        f"{free_text} free on the device, {reach} together, are too little. {held} were in use.",
        "no_figures": f"{tried} were requested and not found; too little is known of the device's "
        "memory to give the cause.",
    }
