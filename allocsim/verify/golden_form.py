"""Convert statistics and segments of `torch.cuda` to the form in golden cases.

Rule: the model and real PyTorch return the same dictionaries, so both are converted by the same
code.  Raw stream handles become the stream numbers of the script.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["golden_segment", "golden_stats", "stream_numbers"]

_COLUMNS = ("current", "peak", "allocated", "freed")
_AS_THEY_ARE = (
    "address",
    "total_size",
    "requested_size",
    "allocated_size",
    "active_size",
    "is_expandable",
)
Numbers = Callable[[int], int]


def golden_stats(flat: Mapping[str, int]) -> dict[str, Any]:
    """Return `torch.cuda.memory_stats()` with one item per statistic.

    A statistic has [current, peak, allocated, freed], and a counter one number.
    """
    names = [key.removesuffix(".current") for key in flat if key.endswith(".current")]
    grouped = {name: [flat[f"{name}.{column}"] for column in _COLUMNS] for name in names}
    return grouped | {key: flat[key] for key in flat if "." not in key}


def golden_segment(segment: Mapping[str, Any], number: Numbers) -> dict[str, Any]:
    """Return a segment of `torch.cuda.memory._snapshot()` in the form of golden cases.

    number: function from a raw stream handle to the stream number.
    """
    return {
        **{key: segment[key] for key in _AS_THEY_ARE},
        "stream": number(segment["stream"]),
        "is_large": segment["segment_type"] == "large",
        "pool": segment["segment_pool_id"][1],
        "blocks": [[b["size"], b["requested_size"], b["state"]] for b in segment["blocks"]],
    }


def stream_numbers(handles: Mapping[int, int]) -> Numbers:
    """Return a function from raw handles to stream numbers.

    handles: raw handle of each stream number.
    """
    known = {handle: number for number, handle in handles.items()}
    return known.__getitem__
