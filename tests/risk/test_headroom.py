"""Headroom over time, and reserved memory that cannot serve the largest request."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from allocsim import CachingAllocator
from allocsim.analysis.risk import HeadroomWatch, largest_entry, spans_of
from allocsim.recording import Recording
from allocsim.replaying import replay
from allocsim.simulation import Timeline
from allocsim.units import MIB

Recorded = Callable[..., Recording]


def test_the_headroom_counts_what_pytorch_could_give_back(recorded: Recorded) -> None:
    def program(gpu: CachingAllocator) -> None:
        gpu.free(gpu.malloc(40 * MIB))
        gpu.malloc(50 * MIB)

    watch = HeadroomWatch((50 * MIB, 0))
    replay(recorded(program, "16GiB"), device_memory="100MiB", observers=(watch,))
    points = [(p.free_bytes // MIB, p.returnable_bytes // MIB) for p in watch.points]
    assert points == [(60, 0), (10, 40)]
    assert watch.tightest is not None
    assert watch.tightest.headroom_bytes == 50 * MIB
    assert watch.points[1].unusable_bytes == 40 * MIB


def test_headroom_counts_whole_free_handles_only(recorded: Recorded) -> None:
    def program(gpu: CachingAllocator) -> None:
        gpu.free(gpu.malloc(50 * MIB))
        gpu.malloc(5 * MIB)
        gpu.malloc(70 * MIB)

    conf = "expandable_segments:True"
    watch = HeadroomWatch((70 * MIB, 0))
    replay(recorded(program, "16GiB", conf), conf, device_memory="200MiB", observers=(watch,))
    last = watch.points[-1]
    assert (last.reserved_bytes // MIB, last.free_bytes // MIB) == (80, 120)
    assert (last.idle_bytes // MIB, last.returnable_bytes) == (5, 0)


def test_headroom_excludes_memory_of_other_streams(recorded: Recorded) -> None:
    def program(gpu: CachingAllocator) -> None:
        gpu.free(gpu.malloc(80 * MIB, 4096))
        gpu.malloc(60 * MIB)

    watch = HeadroomWatch((60 * MIB, 0))
    replay(recorded(program, "16GiB"), device_memory="1GiB", observers=(watch,))
    assert watch.points[-1].unusable_bytes == 80 * MIB


def test_the_largest_request_is_found(recorded: Recorded) -> None:
    def program(gpu: CachingAllocator) -> None:
        for size in (10, 30, 30, 20):
            gpu.malloc(size * MIB)

    trace = recorded(program, "16GiB").devices[0]
    entry = largest_entry(trace)
    assert entry is not None
    assert trace[entry].size == 30 * MIB
    assert entry == 3  # the first of the two


def test_spans_cover_every_step() -> None:
    column = np.arange(10, dtype=np.int64)
    spans = spans_of(Timeline(entry=column * 2, allocated=column, reserved=column * 3), 4)
    assert (spans[0].first, spans[-1].last) == (0, 18)
    assert len(spans) == 4
    assert [span.allocated_bytes for span in spans][-1] == 9
    assert spans_of(Timeline(column[:0], column[:0], column[:0]), 4) == ()
