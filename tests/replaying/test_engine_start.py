"""Starts of vLLM: it changes settings while it loads weights, and deletes a pool of trial graphs.

A plain snapshot shows neither.  An independent model of the allocator runs each program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from allocsim import Hints, load, replay
from allocsim.recording import Action, Recording
from allocsim.replaying import parting_of, prepare
from allocsim.units import GIB, MIB
from tests.naive.model import NaiveAllocator
from tests.recordings import TRACES

Written = Callable[[Any], Recording]
LOADING, LOADED = "max_split_size_mb:20", "max_split_size_mb:17592186044415"
ENGINES = sorted((TRACES / "h100" / "engines").glob("*.npz.gz"))


def device(version: str = "2.11", conf: str = LOADING) -> NaiveAllocator:
    return NaiveAllocator(4 * GIB, conf, version, record_history=True)


def load_weights(gpu: NaiveAllocator) -> None:
    """Load 4 MiB; a cached block of 45 MiB is not cut for them, as it would be without a limit."""
    gpu.free(gpu.malloc(45 * MIB))
    gpu.malloc(4 * MIB)


def entry_of(size: int, recording: Recording) -> int:
    trace = recording.devices[0]
    sizes = zip(trace.action.tolist(), trace.size.tolist(), strict=True)
    return list(sizes).index((Action.ALLOC, size))


def is_exact(recording: Recording, **options: Any) -> bool:
    (run,) = replay(recording, **options).devices
    return run.fidelity is not None and run.fidelity.is_exact


def test_change_of_settings_is_found_at_the_first_request_that_needs_it(written: Written) -> None:
    gpu = device()
    load_weights(gpu)
    gpu.set_allocator_settings(LOADED)
    gpu.malloc(17 * MIB)  # cut from the cached 45 MiB
    recording = written(gpu.snapshot())
    change = entry_of(17 * MIB, recording)
    (run,) = replay(recording).devices
    assert run.fidelity is not None
    assert run.fidelity.is_exact
    expected = f"{LOADING} is assumed up to entry {change}, as vLLM sets while it loads weights"
    assert expected in run.notes
    assert is_exact(recording, hints=Hints(settings=((0, LOADING), (change, LOADED))))


def test_change_is_found_before_a_large_request_that_shows_it_only_later(written: Written) -> None:
    """Both settings serve 30 MiB from the 45 MiB block, but only the later one cuts it."""
    gpu = device()
    load_weights(gpu)
    gpu.set_allocator_settings(LOADED)
    gpu.malloc(30 * MIB)
    gpu.malloc(14 * MIB)  # a rest of 15 MiB is too small for it and the next
    gpu.malloc(17 * MIB)
    recording = written(gpu.snapshot())
    (prepared,) = prepare(recording)
    assert parting_of(prepared) is None
    assert [mark.entry for mark in prepared.marks] == [entry_of(30 * MIB, recording)]


def test_other_settings_while_loading_leave_the_recording_unproved(written: Written) -> None:
    gpu = device(conf="max_split_size_mb:40")
    load_weights(gpu)
    gpu.free(gpu.malloc(30 * MIB))
    for size in (17, 16, 16):  # the first is cut from 30 MiB, the last not from 45 MiB
        gpu.malloc(size * MIB)
    gpu.set_allocator_settings(LOADED)
    gpu.malloc(17 * MIB)
    recording = written(gpu.snapshot())
    (run,) = replay(recording).devices
    assert run.fidelity is not None
    assert not run.fidelity.is_exact
    assert not any("vLLM" in note for note in run.notes)


def test_given_settings_take_precedence_over_those_of_vllm(written: Written) -> None:
    gpu = device()
    load_weights(gpu)
    gpu.set_allocator_settings(LOADED)
    gpu.malloc(17 * MIB)
    recording = written(gpu.snapshot())
    (run,) = replay(recording, hints=Hints(settings=((0, LOADED),))).devices
    assert run.fidelity is not None
    assert not run.fidelity.is_exact


def test_change_of_settings_is_kept_under_another_release(written: Written) -> None:
    gpu = device()
    load_weights(gpu)
    gpu.set_allocator_settings(LOADED)
    gpu.malloc(17 * MIB)
    recording = written(gpu.snapshot())
    runs = [replay(recording, torch_version=each).devices[0] for each in (None, "2.15")]
    peaks = {run.peak_reserved_bytes for run in runs}
    assert peaks == {gpu.memory_stats()["reserved_bytes.all.peak"]}


def capture_twice(gpu: NaiveAllocator) -> None:
    """Capture a graph, with eager requests before and after it, delete it, and empty the cache."""
    for number in (1, 2):
        gpu.malloc(1 * MIB)
        gpu.begin_allocate_to_pool(number)
        blocks = [gpu.malloc(size * MIB) for size in (1, 3, 12)]
        gpu.end_allocate_to_pool(number)
        gpu.malloc(2 * MIB)
        for block in blocks:
            gpu.free(block)
        gpu.release_pool(number)
        gpu.empty_cache()


@pytest.mark.parametrize("version", ["2.6", "2.11", "2.12"])
def test_deleted_pools_of_graphs_are_found(version: str, written: Written) -> None:
    """From 2.12 on, each entry has the id of its pool."""
    gpu = device(version, "")
    capture_twice(gpu)
    (run,) = replay(written(gpu.snapshot())).devices
    assert run.fidelity is not None
    assert run.fidelity.is_exact
    assumed = [note for note in run.notes if note.startswith("a private pool is assumed")]
    assert len(assumed) == (0 if version == "2.12" else 2)


def test_pool_that_was_not_deleted_is_not_assumed(written: Written) -> None:
    """The segments of a pool are kept to the end, but the file does not name the pool."""
    gpu = device(conf="")
    gpu.free(gpu.malloc(40 * MIB))
    gpu.empty_cache()
    gpu.malloc(1 * MIB)
    gpu.begin_allocate_to_pool(1)
    gpu.malloc(1 * MIB)
    gpu.end_allocate_to_pool(1)
    snapshot = gpu.snapshot()
    for segment in snapshot["segments"]:
        segment["segment_pool_id"] = (0, 0)
    (run,) = replay(written(snapshot)).devices
    assert run.fidelity is not None
    assert not run.fidelity.is_exact
    assert not any("private pool" in note for note in run.notes)


@pytest.mark.parametrize("path", ENGINES, ids=lambda path: path.name.partition(".")[0])
def test_start_of_vllm_on_a_card_replays_exactly(path: Any) -> None:
    recording = load(path)
    assert recording.settings is not None
    assert recording.settings.conf == LOADED
    assert recording.provenance is None
    assert is_exact(recording)
