"""Text of out-of-memory errors, in the wording of the simulated release (releases.py).

The number after "Tried to allocate" is the size of the segment, not of the request, and free memory
is read after the caches were released.  Source: semantics 7.2, 7.3, 12.4, 12.5.
"""

from __future__ import annotations

from dataclasses import dataclass

from allocsim.core.config import AllocatorConfig
from allocsim.units import format_size


@dataclass(frozen=True, slots=True)
class OomFigures:
    """Numbers in the text of an out-of-memory error, in bytes except `device`.

    tried: size of the segment that the allocator failed to obtain.
    private: bytes of free blocks in private pools.
    limit: reserved bytes that the memory fraction allows; None without a fraction.
    """

    device: int
    tried: int
    total: int
    free: int
    allocated: int
    reserved: int
    private: int
    limit: int | None


def oom_text(figures: OomFigures, config: AllocatorConfig) -> str:
    release = config.release
    # From 2.4 on, the text counts free blocks of private pools as allocated.
    private = figures.private if release.oom_counts_private_pools else 0
    text = release.oom_text.format(
        tried=format_size(figures.tried),
        # 2.3 prints an int8_t as a character.
        device=chr(figures.device) if release.oom_device_is_raw_byte else figures.device,
        total=format_size(figures.total),
        free=format_size(figures.free),
        limit=f"{format_size(figures.limit)} allowed; " if figures.limit is not None else "",
        allocated=format_size(figures.allocated + private),
        private=(
            f"with {format_size(private)} allocated in private pools (e.g., CUDA Graphs), "
            if private
            else ""
        ),
        # Includes blocks that wait for other streams.
        unallocated=format_size(figures.reserved - figures.allocated - private),
        advice=_advice(figures, config),
    )
    return text.split("\0", maxsplit=1)[0]  # a C string ends at the first NUL


def _advice(figures: OomFigures, config: AllocatorConfig) -> str:
    release = config.release
    if not config.expandable_segments or release.oom_advice_expandable is None:
        return release.oom_advice
    # A request longer than the address space of a segment fails on an empty device as well.
    is_set, reserve = config.expandable_segments_reserve, config.expandable_reserve(figures.total)
    if is_set is not None and reserve < figures.tried <= figures.total:
        return (
            " This allocation exceeds the expandable-segment reserve of "
            f"{format_size(reserve)} for this stream, and a single allocation cannot span "
            "expandable segments. Raise PYTORCH_CUDA_ALLOC_CONF expandable_segments_reserve or "
            "expandable_segments_reserve_by_class (or unset it) so that a segment is at least "
            f"{format_size(figures.tried)}."
        )
    return release.oom_advice_expandable


def rejection_text(requested: int) -> str:
    return (
        "CUDA out of memory. Allocation was preemptively rejected because it would exceed "
        f"per_process_memory_fraction limit. Requested size: {format_size(requested)}"
    )
