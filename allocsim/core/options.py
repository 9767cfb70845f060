"""Options of PYTORCH_CUDA_ALLOC_CONF: where `AllocatorConfig` keeps each value, and its effect.

`releases.py` says which release reads an option, and `option_string.py` how its value is read.
CONTRIBUTING.md, "Adding an option", lists the places to change for an option that affects device
memory.  All other options are only read, kept and printed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Role(Enum):
    """Kind of effect that an option has on device memory."""

    CUTS = "how memory is cut into segments and blocks, and which of them are released"
    LIMITS = "how much memory the process may take"
    CAPTURES = "when a block that a graph capture freed is used again"
    NONE = "nothing"


@dataclass(frozen=True, slots=True)
class Option:
    """One option of PYTORCH_CUDA_ALLOC_CONF.

    name: name of the option in PyTorch, such as "max_split_size_mb".
    field: field of `AllocatorConfig` that has the value.  "host" if the value is in the dictionary
        `AllocatorConfig.host`, "" if it is not kept.
    is_shared: True if all accelerators have the option.  PyTorch 2.10 and later read such options
        in the first of two passes over the option string.
    """

    name: str
    role: Role
    field: str
    is_shared: bool = False


_ROWS = (
    Option("max_split_size_mb", Role.CUTS, "max_split_size", is_shared=True),
    Option("max_non_split_rounding_mb", Role.CUTS, "max_non_split_rounding", is_shared=True),
    Option("large_segment_size_mb", Role.CUTS, "large_segment_size", is_shared=True),
    Option(
        "garbage_collection_threshold",
        Role.CUTS,
        "garbage_collection_threshold",
        is_shared=True,
    ),
    Option("roundup_power2_divisions", Role.CUTS, "roundup_power2_divisions", is_shared=True),
    Option("expandable_segments", Role.CUTS, "expandable_segments", is_shared=True),
    Option("per_process_memory_fraction", Role.LIMITS, "per_process_memory_fraction"),
    Option("throw_on_cudamalloc_oom", Role.LIMITS, "throw_on_cudamalloc_oom"),
    Option("expandable_segments_reserve", Role.LIMITS, "expandable_segments_reserve"),
    Option("graph_capture_record_stream_reuse", Role.CAPTURES, "graph_capture_record_stream_reuse"),
    Option("backend", Role.NONE, ""),
    Option("expandable_segments_reserve_by_class", Role.NONE, ""),
    Option("release_lock_on_cudamalloc", Role.NONE, "host"),
    Option("pinned_use_cuda_host_register", Role.NONE, "host"),
    Option("pinned_num_register_threads", Role.NONE, "host"),
    Option("pinned_use_background_threads", Role.NONE, "host", is_shared=True),
    Option("pinned_reserve_segment_size_mb", Role.NONE, "host"),
    Option("pinned_free_catch_all", Role.NONE, "host"),
    Option("pinned_max_round_threshold_mb", Role.NONE, "host", is_shared=True),
    Option("pinned_max_cached_size_mb", Role.NONE, "host", is_shared=True),
)

OPTIONS: dict[str, Option] = {option.name: option for option in _ROWS}
"""Every option of every modelled PyTorch release, keyed by its name."""
