"""Behaviour of each release, as a table of first releases (semantics 9 and the sections it names).

The wordings of the out-of-memory texts are in test_oom_texts.py.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from allocsim.core.releases import (
    NEWEST,
    RELEASES,
    EmptyCacheInScope,
    FreeBlockOrder,
    Overflow,
    Release,
    _accumulate,
    find_release,
)
from allocsim.errors import ConfigError

ORDER = [f"2.{minor}" for minor in range(1, 16)]

KEYS = {  # 8.3: the release that brought each key of the option string
    "2.1": {
        "max_split_size_mb",
        "roundup_power2_divisions",
        "garbage_collection_threshold",
        "backend",
        "expandable_segments",
    },
    "2.2": {
        "release_lock_on_cudamalloc",
        "pinned_use_cuda_host_register",
        "pinned_num_register_threads",
    },
    "2.6": {"max_non_split_rounding_mb", "pinned_use_background_threads"},
    "2.9": {"graph_capture_record_stream_reuse"},
    "2.10": {"per_process_memory_fraction", "pinned_reserve_segment_size_mb"},
    "2.11": {"large_segment_size_mb"},
    "2.12": {"throw_on_cudamalloc_oom", "pinned_free_catch_all"},
    "2.13": {"pinned_max_round_threshold_mb", "pinned_max_cached_size_mb"},
    "2.15": {"expandable_segments_reserve", "expandable_segments_reserve_by_class"},
}

BASIC = ("segments", "device_traces")
SETTINGS = (
    "PYTORCH_CUDA_ALLOC_CONF",
    "max_split_size",
    "garbage_collection_threshold",
    "expandable_segments",
    "pinned_num_register_threads",
    "release_lock_on_cudamalloc",
    "pinned_use_cuda_host_register",
)
REUSE, ROUNDUP = "graph_capture_record_stream_reuse", "roundup_power2_divisions"
HOST_SIZES = ("max_round_threshold", "max_cached_size")

SINCE: dict[str, dict[str, Any]] = {  # field: the values and the first release of each
    "free_block_order": {
        "2.1": FreeBlockOrder.ADDRESS,
        "2.12": FreeBlockOrder.CREATION,
        "2.13": FreeBlockOrder.SEGMENT,
    },
    "one_division_keeps_size": {"2.1": True, "2.4": False},
    "conf_variables": {
        "2.1": ("PYTORCH_CUDA_ALLOC_CONF",),
        "2.10": ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
    },
    "separators_checked": {"2.1": True, "2.10": False},
    "thresholds_inclusive": {"2.1": False, "2.10": True},
    "list_divisions_may_be_zero": {"2.1": False, "2.4": True},
    "list_tail_overwrites_last": {"2.1": True, "2.10": False},
    "parse_resets_non_split_rounding": {"2.1": False, "2.11": True},
    "old_error_words": {"2.1": True, "2.10": False},
    "full_fraction_is_limit": {"2.1": True, "2.10": False},
    "fraction_rounds": {"2.1": False, "2.13": True},
    "counts_device_calls": {"2.1": False, "2.3": True},
    "counts_oom_rejections": {"2.1": False, "2.12": True},
    "counts_private_pools": {"2.1": False, "2.13": True},
    "entry_fields": {
        "2.1": (),
        "2.2": ("time_us",),
        "2.8": ("time_us", "compile_context"),
        "2.10": ("time_us", "compile_context", "user_metadata"),
        "2.12": ("time_us", "compile_context", "user_metadata", "pool_id"),
    },
    "snapshot_keys": {
        "2.1": BASIC,
        "2.3": (*BASIC, "allocator_settings"),
        "2.5": (*BASIC, "allocator_settings", "external_annotations"),
        "2.14": (
            *BASIC,
            "allocator_settings",
            "external_annotations",
            "host_segments",
            "host_traces",
        ),
    },
    "settings_keys": {
        "2.1": (),
        "2.3": (*SETTINGS, ROUNDUP),
        "2.9": (*SETTINGS, REUSE, ROUNDUP),
        "2.13": (*SETTINGS, REUSE, *HOST_SIZES, ROUNDUP),
    },
    "scope_is_capture": {"2.1": True, "2.13": False},
    "scope_by_stream": {"2.1": True, "2.3": False},
    "newest_scope_wins": {"2.1": False, "2.10": True},
    "unordered_deferred_frees": {"2.1": False, "2.9": True, "2.13": False},
    "forgets_captured_streams": {"2.1": False, "2.4": True, "2.13": False},
    "empty_cache_in_scope": {
        "2.1": EmptyCacheInScope.ASSERTS,
        "2.8": EmptyCacheInScope.FREEABLE_ONLY,
        "2.13": EmptyCacheInScope.NORMAL,
    },
    "overflow": {"2.1": Overflow.NEVER, "2.8": Overflow.LAST, "2.11": Overflow.FIRST},
    "overflow_may_be_expandable": {"2.1": True, "2.10": False},
    "no_split": {"2.1": False, "2.10": True},
    "empty_cache_of_pool": {"2.1": False, "2.8": True},
    "mempools_hold_pools": {"2.1": False, "2.6": True},
    "mempool_is_last_user": {"2.1": False, "2.6": True, "2.10": False},
    "mempool_takes_mark_back": {"2.1": False, "2.11": True},
    "release_forgets_no_split": {"2.1": False, "2.14": True},
    "expandable_private_pools": {"2.1": False, "2.5": True},
    "release_skips_expandable": {"2.1": False, "2.5": True},
    "short_segment_is_destroyed": {"2.1": False, "2.15": True},
    "keeps_cublas_workspaces": {"2.1": True, "2.15": False},
    "oom_device_is_raw_byte": {"2.1": False, "2.3": True, "2.4": False},
    "oom_counts_private_pools": {"2.1": False, "2.4": True},
    "models_host": {"2.1": False, "2.6": True},
    "host_polls_one_size": {"2.1": True, "2.10": False},
    "host_counts_plain_frees": {"2.1": True, "2.10": False, "2.13": True},
    "host_counts_polled_size": {"2.1": True, "2.13": False},
    "host_takes_newest": {"2.1": True, "2.14": False},
    "host_private_pools": {"2.1": False, "2.11": True},
    "host_stats_by_pool": {"2.1": False, "2.15": True},
}
WORDINGS = {"oom_text", "oom_advice", "oom_advice_expandable", "host_stats"}


def in_force(values: dict[str, Any], torch: str) -> list[Any]:
    """Return the values that `torch` and earlier releases introduced, oldest first."""
    return [values[each] for each in ORDER[: ORDER.index(torch) + 1] if each in values]


def test_the_table_names_every_field() -> None:
    assert {each.name for each in fields(Release)} == {*SINCE, *WORDINGS, "version", "options"}


def test_every_release_does_what_the_table_says() -> None:
    made = _accumulate()  # computed again, beside the table made at import
    for releases in (RELEASES, made):
        assert list(releases) == ORDER
        for torch, release in releases.items():
            assert release.version == torch
            assert release.options == set[str]().union(*in_force(KEYS, torch))
            for name, values in SINCE.items():
                assert getattr(release, name) == in_force(values, torch)[-1], (torch, name)
    assert made == RELEASES  # includes the wordings


@pytest.mark.parametrize(
    ("version", "found"),
    [("2.15", "2.15"), ("2.9.1", "2.9"), ("2.6.0+cu124", "2.6"), ("2.1", "2.1")],
)
def test_a_version_belongs_to_its_minor_release(version: str, found: str) -> None:
    assert find_release(version) is RELEASES[found]


@pytest.mark.parametrize("version", ["2.0", "2.0.1+cu118", "1.13", "2.99", "2", "", "x"])
def test_other_versions_are_refused(version: str) -> None:
    assert ORDER[-1] == NEWEST
    text = f"torch_version {version!r} is not modelled; expected 2.1 to {NEWEST}"
    with pytest.raises(ConfigError) as caught:
        find_release(version)
    assert str(caught.value) == text


@pytest.mark.parametrize("version", ["2.6+cu124", "2.6+git.1a2b", "2.6.0a0+git1a2b"])
def test_what_a_build_adds_to_its_version_is_ignored(version: str) -> None:
    assert find_release(version) is RELEASES["2.6"]
