"""What a recording leaves open: a what-if tells what it may come to by it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from allocsim import CachingAllocator, replay
from allocsim.engine import Setting, prepare
from allocsim.engine.left_open import peaks_left_open
from allocsim.trace import Mark, MarkKind, Recording
from allocsim.units import MIB

Recorded = Callable[..., Recording]
UNCUT = "max_split_size_mb:32"


def two_calls(gpu: CachingAllocator) -> None:
    """The first call gives nothing back: the 60 MiB are cut and a piece of them is in use.

    Uncut, under max_split_size_mb:32, they would go back, and the next request take their place.
    """
    gpu.free(gpu.malloc(60 * MIB))
    held = gpu.malloc(30 * MIB)
    gpu.empty_cache()
    gpu.malloc(80 * MIB)
    gpu.free(held)
    gpu.free(gpu.malloc(20 * MIB))
    gpu.empty_cache()
    gpu.malloc(2 * MIB)


def peak_of(program: Callable[[CachingAllocator], None], conf: str) -> int:
    gpu = CachingAllocator("16GiB", conf)
    program(gpu)
    return gpu.memory_stats()["reserved_bytes.all.peak"]


def test_the_range_of_a_what_if_holds_the_run_with_calls_that_left_no_entry(
    recorded: Recorded,
) -> None:
    recording = recorded(two_calls)
    (run,) = replay(recording, UNCUT).devices
    assert run.peaks_left_open is not None
    low, high = run.peak_range
    assert low <= peak_of(two_calls, UNCUT) <= high
    assert low < run.peak_reserved_bytes
    assert any("calls of empty_cache that gave nothing back leave no entry" in n for n in run.notes)


def test_as_recorded_nothing_is_open(recorded: Recorded) -> None:
    (run,) = replay(recorded(two_calls)).devices
    assert run.peaks_left_open is None
    assert run.peak_range == (run.peak_reserved_bytes, run.peak_reserved_bytes)


def test_a_program_that_shows_no_call_is_taken_to_make_none(recorded: Recorded) -> None:
    def careful(gpu: CachingAllocator) -> None:
        gpu.free(gpu.malloc(60 * MIB))
        gpu.malloc(30 * MIB)

    (run,) = replay(recorded(careful), UNCUT).devices
    assert run.peaks_left_open is None


def test_calls_that_are_marked_are_all_there_are(recorded: Recorded) -> None:
    (prepared,) = prepare(recorded(two_calls))
    marked = replace(prepared, marks=(Mark(3, MarkKind.EMPTY_CACHE),))
    assert peaks_left_open(prepared, Setting(UNCUT), None) is not None
    assert peaks_left_open(marked, Setting(UNCUT), None) is None


@pytest.mark.parametrize("conf", ["expandable_segments:True", ""])
def test_a_moment_is_quiet_where_empty_cache_gives_nothing_back(conf: str) -> None:
    """Whatever is cached: whole segments, or whole pages of mapped ones."""
    gpu = CachingAllocator("16GiB", conf)
    names: list[Any] = [gpu.malloc(size) for size in (512, 30 * MIB, MIB, 70 * MIB)]
    for ptr in names:
        assert not gives_back(gpu) or gpu.has_cached_memory
        gpu.free(ptr)
        before = gpu.has_cached_memory
        assert gives_back(gpu) == before


def gives_back(gpu: CachingAllocator) -> bool:
    reserved = gpu.reserved_bytes
    gpu.empty_cache()
    return gpu.reserved_bytes < reserved
