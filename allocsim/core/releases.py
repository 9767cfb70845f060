"""Differences between the allocators of PyTorch's releases, as data.

`Release` is the behaviour of one PyTorch release.  `CHANGES` has one row for each release with the
changes since the row above, so that a new release is a new row.  It may also need a row in
`recording/recording.py` (contents of recordings), `phantom/wheel.py` (published wheels),
`analysis/explain/message_words.py` (wordings of errors) and `phantom/stub/release.h` (C++ headers).
Source: semantics 9, and the section named at each field.

The module is long because it is one table.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from allocsim.errors import ConfigError


class FreeBlockOrder(Enum):
    """Tie-break between free blocks of equal stream and size (semantics.md, section 1.5)."""

    ADDRESS = "lowest address"
    CREATION = "oldest block object, then lowest address"
    SEGMENT = "oldest segment, then lowest address"


class Overflow(Enum):
    """Moment at which pools marked use_on_oom serve requests of the default pool.

    Source: semantics 5.6.
    """

    NEVER = "no such pools"
    LAST = "after the caches have been released"
    FIRST = "right after the driver refused"


class EmptyCacheInScope(Enum):
    """Effect of empty_cache while a pool scope is open (semantics.md, section 2.5)."""

    ASSERTS = "stops on an internal assertion"
    FREEABLE_ONLY = "releases freeable private pools only"
    NORMAL = "releases everything"


@dataclass(frozen=True, slots=True)
class HostStatNames:
    """Names of statistics in torch.cuda.host_memory_stats(), which differ between PyTorch releases.

    active, active_bytes: number and bytes of blocks in use, including freed blocks that wait for a
        stream.
    owned, owned_bytes: number and bytes of all blocks, in use or cached.

    Source: semantics 13.5.
    """

    active: str
    active_bytes: str
    owned: str
    owned_bytes: str


@dataclass(frozen=True, slots=True)
class Release:
    """Behaviour of one PyTorch release; defaults are those of PyTorch 2.1.

    Each docstring below is a statement that holds for a release if the field is True.  Sections are
    those of docs/concepts/semantics.md.
    """

    version: str = "2.1"

    # Placement (semantics.md, section 1).
    free_block_order: FreeBlockOrder = FreeBlockOrder.ADDRESS
    one_division_keeps_size: bool = True
    """roundup_power2_divisions:1 leaves the request unrounded (section 1.2)."""

    # Option string (8).
    conf_variables: tuple[str, ...] = ("PYTORCH_CUDA_ALLOC_CONF",)
    """Environment variables for the option string; the first that is set is read (section 8.1)."""
    options: frozenset[str] = frozenset(
        {
            "max_split_size_mb",
            "roundup_power2_divisions",
            "garbage_collection_threshold",
            "backend",
            "expandable_segments",
        }
    )
    separators_checked: bool = True
    """Every separator of an option string such as `a:b,c:d` is verified (section 8.2).

    If False, any token is accepted in place of a separator, and the options that all accelerators
    share are read before the options of CUDA.
    """
    thresholds_inclusive: bool = False
    """Sizes in an option string may equal their minimum, not only exceed it (section 8.3)."""
    list_divisions_may_be_zero: bool = False
    list_tail_overwrites_last: bool = True
    """`>` in a roundup_power2_divisions list replaces the last size's value too (section 1.2)."""
    parse_resets_non_split_rounding: bool = False
    old_error_words: bool = True

    # Limit (1.11).
    full_fraction_is_limit: bool = True
    """set_per_process_memory_fraction(1.0) sets a limit; if False, it removes the limit."""
    fraction_rounds: bool = False
    """The limit from a memory fraction is rounded to the nearest byte instead of truncated."""

    # Statistics, traces and snapshots (3, 6).
    counts_device_calls: bool = False
    """memory_stats() has num_sync_all_streams, num_device_alloc and num_device_free."""
    counts_oom_rejections: bool = False
    counts_private_pools: bool = False
    """memory_stats() has reserved_bytes_by_private_pools."""
    entry_fields: tuple[str, ...] = ()
    """Names of the fields that a trace entry has after action, addr, size and stream."""
    snapshot_keys: tuple[str, ...] = ("segments", "device_traces")
    settings_keys: tuple[str, ...] = ()

    # Private pools (5).
    scope_is_capture: bool = True
    """A pool scope counts as a graph capture (section 5.4).

    If True, frees of blocks that other streams use wait until the scope ends.
    """
    scope_by_stream: bool = True
    """begin_allocate_to_pool sends only requests of one stream to the pool (section 5.2)."""
    newest_scope_wins: bool = False
    forgets_captured_streams: bool = False
    """A free deferred to the end of a pool scope ignores its record_stream calls (section 5.5)."""
    unordered_deferred_frees: bool = False
    """Deferred frees complete in an order that depends on the addresses of C++ objects.

    No model can know this order (section 12.3a).
    """
    empty_cache_in_scope: EmptyCacheInScope = EmptyCacheInScope.ASSERTS
    overflow: Overflow = Overflow.NEVER
    overflow_may_be_expandable: bool = True
    """Expandable blocks of use_on_oom pools may serve the default pool (section 5.6)."""
    no_split: bool = False
    empty_cache_of_pool: bool = False
    """empty_cache has a parameter for the private pool to release (section 2.5)."""
    mempools_hold_pools: bool = False
    """A MemPool counts as a user of its private pool until it is deleted (section 5.7)."""
    mempool_is_last_user: bool = False
    """Deleting a MemPool fails an assertion if its private pool has another user (section 5.7)."""
    mempool_takes_mark_back: bool = False
    """Deleting a MemPool switches use_on_oom of its private pool off (section 5.7)."""
    release_forgets_no_split: bool = False
    """When a private pool's use count falls to 0, no_split is switched off for its id.

    If False, it stays on for the id (observed on real PyTorch).
    """

    # Expandable segments (4).
    expandable_private_pools: bool = False
    release_skips_expandable: bool = False
    """Releasing oversize blocks skips expandable ones and does not assert (section 1.10)."""
    short_segment_is_destroyed: bool = False
    """A new expandable segment shorter than the request is destroyed at once (section 4.2)."""

    # Pinned host memory (13).
    models_host: bool = False
    """`CachingHostAllocator` models this release's allocator of pinned memory."""
    host_stats: HostStatNames | None = None
    """Names in torch.cuda.host_memory_stats(); None if there is no such function (section 13.5)."""
    host_polls_one_size: bool = True
    """With a background thread, a pinned request polls for frees of its size (section 13.4)."""
    host_counts_plain_frees: bool = True
    """A pinned free that waits for no stream reduces the active statistics (section 13.5)."""
    host_counts_polled_size: bool = True
    """A poll subtracts its own size from active pinned bytes for each free (section 13.5).

    Its own size is the block size that it searches for, or -1 if it accepts any size.  If False, it
    subtracts the size of the block.
    """
    host_takes_newest: bool = True
    """A pinned request takes the newest block of its bucket, even if too small (section 13.2)."""
    host_private_pools: bool = False
    """Requests for pinned memory in a graph capture go to a private pool (section 13.6)."""
    host_stats_by_pool: bool = False
    """The peak of active pinned blocks is the sum of the peaks of the pools (section 13.6)."""

    # Requests of the program.
    keeps_cublas_workspaces: bool = True
    """cuBLAS keeps a workspace for each handle and stream (section 12.10).

    If False, each matrix product requests one.
    """

    # The out-of-memory text (7.2).
    oom_text: str = (
        "CUDA out of memory. Tried to allocate {tried}. GPU {device} has a total capacty of "
        "{total} of which {free} is free. Of the allocated memory {allocated} is allocated by "
        "PyTorch, and {unallocated} is reserved by PyTorch but unallocated.{advice}"
    )
    oom_advice: str = (
        " If reserved but unallocated memory is large try setting max_split_size_mb to avoid "
        "fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF"
    )
    oom_advice_expandable: str | None = None
    """Text in place of `oom_advice` while expandable segments are on; None keeps `oom_advice`."""
    oom_device_is_raw_byte: bool = False
    """The error text has the device index as a raw byte; for GPU 0 it is NUL and ends the text."""
    oom_counts_private_pools: bool = False


_ADVICE = (
    " If reserved but unallocated memory is large try setting {variable}=expandable_segments:True"
    " to avoid fragmentation.  See documentation for Memory Management  ({link})"
)
_OLD_LINK = "https://pytorch.org/docs/stable/notes/cuda.html#environment-variables"
_NEW_LINK = (
    "https://docs.pytorch.org/docs/stable/notes/cuda.html"
    "#optimizing-memory-usage-with-pytorch-cuda-alloc-conf"
)
_CAPACITY = (
    "CUDA out of memory. Tried to allocate {tried}. GPU {device} has a total capacity of "
    "{total} of which {free} is free. "
)
_SETTINGS = (
    "PYTORCH_CUDA_ALLOC_CONF",
    "max_split_size",
    "garbage_collection_threshold",
    "expandable_segments",
    "pinned_num_register_threads",
    "release_lock_on_cudamalloc",
    "pinned_use_cuda_host_register",
    "roundup_power2_divisions",
)

CHANGES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("2.1", {}),
    (
        "2.2",
        {
            "+options": (
                "release_lock_on_cudamalloc",
                "pinned_use_cuda_host_register",
                "pinned_num_register_threads",
            ),
            "entry_fields": ("time_us",),
            "oom_text": _CAPACITY
            + "Of the allocated memory {allocated} is allocated by PyTorch, and {unallocated} is "
            "reserved by PyTorch but unallocated.{advice}",
            "oom_advice": _ADVICE.format(variable="PYTORCH_CUDA_ALLOC_CONF", link=_OLD_LINK),
        },
    ),
    (
        "2.3",
        {
            "scope_by_stream": False,
            "counts_device_calls": True,
            "snapshot_keys": ("segments", "device_traces", "allocator_settings"),
            "settings_keys": _SETTINGS,
            "oom_device_is_raw_byte": True,
        },
    ),
    (
        "2.4",
        {
            "one_division_keeps_size": False,
            "list_divisions_may_be_zero": True,
            "forgets_captured_streams": True,
            "oom_device_is_raw_byte": False,
            "oom_counts_private_pools": True,
            "oom_text": _CAPACITY
            + "Of the allocated memory {allocated} is allocated by PyTorch, {private}and "
            "{unallocated} is reserved by PyTorch but unallocated.{advice}",
        },
    ),
    (
        "2.5",
        {
            "expandable_private_pools": True,
            "release_skips_expandable": True,
            "snapshot_keys": (
                "segments",
                "device_traces",
                "allocator_settings",
                "external_annotations",
            ),
            "oom_text": _CAPACITY
            + "{limit}Of the allocated memory {allocated} is allocated by PyTorch, {private}and "
            "{unallocated} is reserved by PyTorch but unallocated.{advice}",
        },
    ),
    (
        "2.6",
        {
            "+options": ("max_non_split_rounding_mb", "pinned_use_background_threads"),
            "mempools_hold_pools": True,
            "mempool_is_last_user": True,
            "models_host": True,
        },
    ),
    (
        "2.7",
        {
            "host_stats": HostStatNames(
                "allocation", "allocated_bytes", "segment", "reserved_bytes"
            ),
        },
    ),
    (
        "2.8",
        {
            "empty_cache_in_scope": EmptyCacheInScope.FREEABLE_ONLY,
            "empty_cache_of_pool": True,
            "overflow": Overflow.LAST,
            "entry_fields": ("time_us", "compile_context"),
        },
    ),
    (
        "2.9",
        {
            "+options": ("graph_capture_record_stream_reuse",),
            "unordered_deferred_frees": True,
            "settings_keys": (
                *_SETTINGS[:-1],
                "graph_capture_record_stream_reuse",
                _SETTINGS[-1],
            ),
        },
    ),
    (
        "2.10",
        {
            "+options": ("per_process_memory_fraction", "pinned_reserve_segment_size_mb"),
            "conf_variables": (
                "PYTORCH_CUDA_ALLOC_CONF",
                "PYTORCH_HIP_ALLOC_CONF",
                "PYTORCH_ALLOC_CONF",
            ),
            "separators_checked": False,
            "thresholds_inclusive": True,
            "list_tail_overwrites_last": False,
            "old_error_words": False,
            "full_fraction_is_limit": False,
            "newest_scope_wins": True,
            "no_split": True,
            "mempool_is_last_user": False,
            "overflow_may_be_expandable": False,
            "host_stats": HostStatNames(
                "active_requests", "active_bytes", "allocations", "allocated_bytes"
            ),
            "host_polls_one_size": False,
            "host_counts_plain_frees": False,
            "entry_fields": ("time_us", "compile_context", "user_metadata"),
            "oom_advice": _ADVICE.format(variable="PYTORCH_ALLOC_CONF", link=_OLD_LINK),
        },
    ),
    (
        "2.11",
        {
            "+options": ("large_segment_size_mb",),
            "parse_resets_non_split_rounding": True,
            "overflow": Overflow.FIRST,
            "mempool_takes_mark_back": True,
            "host_private_pools": True,
            "oom_advice": _ADVICE.format(variable="PYTORCH_CUDA_ALLOC_CONF", link=_NEW_LINK),
        },
    ),
    (
        "2.12",
        {
            "+options": ("throw_on_cudamalloc_oom", "pinned_free_catch_all"),
            "free_block_order": FreeBlockOrder.CREATION,
            "counts_oom_rejections": True,
            "entry_fields": ("time_us", "compile_context", "user_metadata", "pool_id"),
        },
    ),
    (
        "2.13",
        {
            "+options": ("pinned_max_round_threshold_mb", "pinned_max_cached_size_mb"),
            "free_block_order": FreeBlockOrder.SEGMENT,
            "scope_is_capture": False,
            "forgets_captured_streams": False,
            "unordered_deferred_frees": False,
            "empty_cache_in_scope": EmptyCacheInScope.NORMAL,
            "fraction_rounds": True,
            "counts_private_pools": True,
            "host_counts_plain_frees": True,
            "host_counts_polled_size": False,
            "settings_keys": (
                *_SETTINGS[:-1],
                "graph_capture_record_stream_reuse",
                "max_round_threshold",
                "max_cached_size",
                _SETTINGS[-1],
            ),
        },
    ),
    (
        "2.14",
        {
            "release_forgets_no_split": True,
            "host_takes_newest": False,
            "oom_advice_expandable": "",
            "snapshot_keys": (
                "segments",
                "device_traces",
                "allocator_settings",
                "external_annotations",
                "host_segments",
                "host_traces",
            ),
        },
    ),
    (
        "2.15",
        {
            "+options": (
                "expandable_segments_reserve",
                "expandable_segments_reserve_by_class",
            ),
            "short_segment_is_destroyed": True,
            "keeps_cublas_workspaces": False,
            "host_stats_by_pool": True,
            "oom_advice_expandable": (
                " expandable_segments is enabled. If instead the process is running out of "
                "virtual address space (VSZ), expandable segments may be over-reserving VA (each "
                "segment reserves ~9/8 of device memory, times the number of streams); reduce it "
                "via PYTORCH_CUDA_ALLOC_CONF expandable_segments_reserve / "
                "expandable_segments_reserve_by_class."
            ),
        },
    ),
)
"""For each PyTorch release, its version and the fields of `Release` that changed since the last.

The key "+options" adds names to the field `options`.
"""


def _accumulate() -> dict[str, Release]:
    releases: dict[str, Release] = {}
    current = Release()
    for version, change in CHANGES:
        changed = {key: value for key, value in change.items() if not key.startswith("+")}
        options = current.options | frozenset(change.get("+options", ()))
        current = replace(current, version=version, options=options, **changed)
        releases[version] = current
    return releases


RELEASES: dict[str, Release] = _accumulate()
"""Every modelled PyTorch release, keyed by "major.minor"."""

NEWEST: str = CHANGES[-1][0]


def find_release(version: str) -> Release:
    """Return the modelled release for a PyTorch version such as "2.9.1" or "2.6.0+cu124".

    Raises ConfigError if it is not modelled.
    """
    key = ".".join(version.partition("+")[0].split(".")[:2])
    if key not in RELEASES:
        first = CHANGES[0][0]
        raise ConfigError(
            f"torch_version {version!r} is not modelled; expected {first} to {NEWEST}"
        )
    return RELEASES[key]
