"""Out-of-memory text of each release, exactly as printed (semantics 7.2, 12.4, 12.5)."""

from __future__ import annotations

from dataclasses import dataclass

from allocsim.units import format_size

__all__ = ["Figures", "oom_text", "rejection_text", "EXABYTE_TEXT"]

EXABYTE_TEXT = "CUDA out of memory. Tried to allocate more than 1EB memory."
NOTES = "https://pytorch.org/docs/stable/notes/cuda.html#environment-variables"
NEW_NOTES = (
    "https://docs.pytorch.org/docs/stable/notes/cuda.html"
    "#optimizing-memory-usage-with-pytorch-cuda-alloc-conf"
)
RESERVE_KEYS = "expandable_segments_reserve / expandable_segments_reserve_by_class"


@dataclass(frozen=True, slots=True)
class Figures:
    """Bytes at the moment of the failure; limit is None without a limit."""

    device: int
    tried: int
    total: int
    free: int
    allocated: int
    reserved: int
    pools: int
    limit: int | None
    expandable: bool
    reserve: int


def rejection_text(requested: int) -> str:
    """Return the text of throw_on_cudamalloc_oom (12.4)."""
    return (
        "CUDA out of memory. Allocation was preemptively rejected because it would exceed "
        f"per_process_memory_fraction limit. Requested size: {format_size(requested)}"
    )


def oom_text(minor: int, f: Figures) -> str:
    """Return the whole text of release 2.`minor`."""
    head = f"CUDA out of memory. Tried to allocate {format_size(f.tried)}. GPU "
    device = chr(f.device) if minor == 3 else str(f.device)
    if device == "\0":
        return head
    capacity = "capacty" if minor == 1 else "capacity"
    place = (
        f"{device} has a total {capacity} of {format_size(f.total)} "
        f"of which {format_size(f.free)} is free. "
    )
    limit = f"{format_size(f.limit)} allowed; " if minor >= 5 and f.limit is not None else ""
    return head + place + limit + usage(minor, f) + advice(minor, f)


def usage(minor: int, f: Figures) -> str:
    """Return the sentence about the memory that PyTorch holds."""
    pools = f.pools if minor >= 4 else 0
    inside = ""
    if pools:
        inside = f"with {format_size(pools)} allocated in private pools (e.g., CUDA Graphs), "
    return (
        f"Of the allocated memory {format_size(f.allocated + pools)} is allocated by PyTorch, "
        f"{inside}and {format_size(f.reserved - f.allocated - pools)} is reserved by PyTorch "
        "but unallocated."
    )


def advice(minor: int, f: Figures) -> str:
    """Return the advice of the release; empty in 2.14 with expandable segments."""
    if minor >= 14 and f.expandable:
        return expandable_advice(f) if minor >= 15 else ""
    start = " If reserved but unallocated memory is large try setting "
    end = " to avoid fragmentation.  See documentation for Memory Management "
    if minor == 1:
        return f"{start}max_split_size_mb{end}and PYTORCH_CUDA_ALLOC_CONF"
    variable = "PYTORCH_ALLOC_CONF" if minor == 10 else "PYTORCH_CUDA_ALLOC_CONF"
    link = NEW_NOTES if minor >= 11 else NOTES
    return f"{start}{variable}=expandable_segments:True{end} ({link})"


def expandable_advice(f: Figures) -> str:
    """Return the hint of 2.15: the reserve is too small, or too much of it is in use."""
    if f.reserve < f.tried <= f.total:
        return (
            " This allocation exceeds the expandable-segment reserve of "
            f"{format_size(f.reserve)} for this stream, and a single allocation cannot span "
            "expandable segments. Raise PYTORCH_CUDA_ALLOC_CONF expandable_segments_reserve or "
            "expandable_segments_reserve_by_class (or unset it) so that a segment is at least "
            f"{format_size(f.tried)}."
        )
    return (
        " expandable_segments is enabled. If instead the process is running out of virtual "
        "address space (VSZ), expandable segments may be over-reserving VA (each segment "
        "reserves ~9/8 of device memory, times the number of streams); reduce it via "
        f"PYTORCH_CUDA_ALLOC_CONF {RESERVE_KEYS}."
    )
