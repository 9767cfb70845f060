"""The sentence of a replay's verdict for each cause of an out-of-memory error.

Rule: every figure comes from the shortage.
"""

from __future__ import annotations

from allocsim.questions.explain import Shortage
from allocsim.units import format_size

__all__ = ["causes_of"]


def causes_of(shortage: Shortage) -> dict[str, str]:
    """The verdict for each cause, in the figures of `shortage`."""
    tried = format_size(shortage.tried_bytes)
    idle = format_size(shortage.idle_bytes)
    free = shortage.figures.free_bytes
    free_text = "unknown" if free is None else format_size(free)
    reach = format_size(shortage.figures.within_reach or 0)
    held = format_size(shortage.oom.allocated_bytes)
    total = format_size(shortage.oom.total_bytes)
    return {
        "impossible": f"impossible. {tried} were asked for at once, more than the whole device "
        f"has ({total}).",
        "host_fallback": f"more is allocated ({held}) than the device has ({total}).",
        "pending_free": f"a freed block came too late. {tried} were asked for; a block that "
        "would have served waited for another stream, and PyTorch does not look again after "
        "the wait.",
        "private_pool": f"a private pool keeps it. {tried} were asked for; what is idle in a "
        "private pool (a CUDA graph, a MemPool) would have been enough.",
        "fraction_limit": f"a memory fraction stopped it. PyTorch was allowed only a part of "
        f"the device's {total}; {free_text} of the device were free.",
        "free_above_request": f"not the allocator. {tried} were asked for with {free_text} free on "
        "the device: something outside PyTorch's allocator refused.",
        "fragmentation": f"fragmentation. {tried} were asked for while PyTorch held {idle} "
        "idle: enough, but in pieces too small or kept for another stream or pool.",
        "fragmentation_likely": f"fragmentation likely. {tried} were asked for; {idle} idle "
        f"inside PyTorch and {free_text} free on the device, {reach} together, would have held "
        "it, but not in one piece.",
        "full": f"the device is full. {tried} were asked for; {idle} idle inside PyTorch and "
        f"{free_text} free on the device, {reach} together, are too little. {held} were in use.",
        "no_figures": f"{tried} were asked for and not found; the device's memory is not "
        "known well enough to say why.",
    }
