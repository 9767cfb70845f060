"""Trial of one job of a sweep, which depends only on its own recording."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from allocsim import CachingAllocator, tune
from allocsim.analysis.tune.lower_bound import bounds_of
from allocsim.analysis.tune.worker import Job, run_job
from allocsim.recording import load
from allocsim.replaying import Point, prepare
from allocsim.simulation import Setting
from allocsim.units import MIB

Write = Callable[..., Path]
Program = Callable[[CachingAllocator], None]


def waiting(gpu: CachingAllocator) -> None:
    """Record 100 MiB that wait for another stream while the next 100 are in use."""
    first = gpu.malloc(100 * MIB)
    gpu.record_stream(first or 0, 1)
    gpu.free(first)
    second = gpu.malloc(100 * MIB)
    gpu.malloc(100)
    gpu.synchronize()
    gpu.free(second)
    gpu.malloc(100)


def test_what_waits_for_a_stream_can_be_waited_for(write: Write) -> None:
    """On 102 MiB the second request waits and empties the cache; 100 MiB are too few."""
    path = write(waiting)
    (row,) = (row for row in tune(path, find_device=True).rows if row.is_baseline)
    assert row.min_device_memory_bytes == 102 * MIB
    bounds = bounds_of(prepare(load(path), 0)[0])
    assert bounds.peak_live_bytes == 100 * MIB + 512
    assert bounds.packed_bytes == 200 * MIB + 512


def growing(steps: int) -> Program:
    def program(gpu: CachingAllocator) -> None:
        blocks = [gpu.malloc((30 + step) * MIB) for step in range(steps)]
        for block in blocks:
            gpu.free(block)

    return program


def test_scan_reads_a_rewritten_file_again(write: Write) -> None:
    confs = ["roundup_power2_divisions:4"]
    assert tune(write(growing(20)), find_device=True, confs=confs).best
    again = tune(write(growing(3)), find_device=True, confs=confs)
    assert [row.min_device_memory_bytes for row in again.rows] == [94 * MIB, 96 * MIB]


def repeating(gpu: CachingAllocator) -> None:
    """Record equal steps, followed by a request that always fails."""
    for _ in range(400):
        blocks = [gpu.malloc(size * MIB) for size in (3, 40, 60)]
        for block in blocks:
            gpu.free(block)
    gpu.malloc(400 * MIB)


def test_skipped_entries_are_not_replayed(write: Write) -> None:
    path = str(write(repeating))
    whole = run_job(Job("", path, 0, "2.15", Setting(""), None))
    given_up = run_job(Job("", path, 0, "2.15", Setting(""), None, within=300 * MIB))
    assert whole.skipped > 0
    assert given_up.dropped_at is not None
    assert given_up.skipped == whole.skipped
    assert given_up.entries + given_up.skipped == given_up.dropped_at + 1


def test_what_cannot_fit_is_not_begun_once_another_went_through(write: Write) -> None:
    """Two divisions round 33 MiB to 48; the setting alone is replayed until it fails."""

    def program(gpu: CachingAllocator) -> None:
        gpu.free(gpu.malloc(20 * MIB))
        gpu.malloc(33 * MIB)

    path, setting = str(write(program)), Setting("roundup_power2_divisions:2")
    bar = ((Point(40 * MIB, 2, 0), False),)
    job = Job("", path, 0, "2.15", setting, 40 * MIB)
    begun = run_job(replace(job, bar=bar))
    assert (begun.dropped_at, begun.num_device_alloc, begun.least_peak) == (1, 0, 48 * MIB)
    alone = run_job(job)
    assert (alone.dropped_at, alone.num_ooms) == (None, 1)
    assert run_job(replace(job, bar=bar, device_memory=64 * MIB)).num_ooms == 0
