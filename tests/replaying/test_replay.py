"""Replays of small recordings under the recorded and other settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from allocsim import CachingAllocator, OutOfMemoryError, load, replay
from allocsim.errors import ConfigError, RecordingError
from allocsim.recording import Recording
from allocsim.units import GIB, MIB

Recorded = Callable[..., Recording]


def two_layers(a: CachingAllocator) -> None:
    """Keep two tensors, and free one of 8 MiB between them."""
    a.malloc(12 * MIB)
    between = a.malloc(8 * MIB)
    a.malloc(4 * MIB)
    a.malloc(1000)
    a.free(between)


def runs_out(a: CachingAllocator) -> None:
    """Keep 60 MiB in three pieces with holes, then request 30 MiB on 100 MiB."""
    blocks = [a.malloc(20 * MIB) for _ in range(4)]
    a.free(blocks[0])
    a.malloc(5 * MIB)
    with pytest.raises(OutOfMemoryError):
        a.malloc(30 * MIB)
    a.free(blocks[1])


def side_stream(a: CachingAllocator) -> None:
    """Free a block that stream 4096 still uses."""
    block = a.malloc(3 * MIB)
    assert block is not None
    a.record_stream(block, 4096)
    a.free(block)
    a.malloc(100)
    a.synchronize()
    a.malloc(200)


@pytest.mark.parametrize("program", [two_layers, side_stream])
def test_replay_as_recorded_is_exact(recorded: Recorded, program: Any) -> None:
    run = replay(recorded(program))
    fidelity = run.devices[0].fidelity
    assert fidelity is not None
    assert fidelity.is_exact
    assert fidelity.addresses_matched == fidelity.allocations > 0
    assert fidelity.segments_matched == fidelity.segments > 0
    assert fidelity.entries_matched == fidelity.entries == run.devices[0].entries


def test_recorded_error_happens_again_and_shows_the_device(recorded: Recorded) -> None:
    run = replay(recorded(runs_out, "100MiB"))
    device = run.devices[0]
    assert run.device_memory == device.device_memory == 100 * MIB
    assert device.fidelity is not None
    assert device.fidelity.is_exact
    [oom] = device.ooms
    assert oom.is_recorded
    assert oom.requested_bytes is None
    assert (oom.rounded_bytes, oom.tried_bytes) == (30 * MIB, 30 * MIB)
    assert oom.message.startswith("CUDA out of memory. Tried to allocate 30.00 MiB.")
    assert device.stopped_at is None
    assert "free plus reserved at the recorded out-of-memory error" in " ".join(device.notes)


def test_recorded_error_that_succeeds_continues_without_the_block(
    recorded: Recorded,
) -> None:
    device = replay(recorded(runs_out, "100MiB"), device_memory="1GiB").devices[0]
    assert device.ooms == ()
    assert device.fidelity is None
    assert device.stats["allocation.all.current"] == 3


def test_unrecorded_error_ends_the_replay(recorded: Recorded) -> None:
    device = replay(recorded(two_layers), device_memory="24MiB").devices[0]
    [oom] = device.ooms
    assert not oom.is_recorded
    assert oom.requested_bytes == 8 * MIB
    assert device.stopped_at == oom.entry
    assert "stops at entry" in device.notes[-1]
    assert device.stats["allocation.all.current"] == 1


def test_other_settings_are_not_compared(recorded: Recorded) -> None:
    recording = recorded(two_layers)
    assert replay(recording, "expandable_segments:True").devices[0].fidelity is None
    assert replay(recording, "").devices[0].fidelity is not None
    assert replay(recording, " ,".strip(" ,")).devices[0].fidelity is not None


def test_large_enough_device_counts_as_recorded(recorded: Recorded) -> None:
    recording = recorded(two_layers)
    assert replay(recording, device_memory=8 * GIB).devices[0].fidelity is not None
    assert replay(recording, device_memory="24MiB").devices[0].fidelity is None


def test_timeline_has_a_row_for_each_step(recorded: Recorded) -> None:
    device = replay(recorded(two_layers)).devices[0]
    timeline = device.timeline
    steps = {int(entry): i for i, entry in enumerate(timeline.entry)}
    allocated = [int(timeline.allocated[i]) for i in steps.values()]
    assert allocated[0] == 12 * MIB
    assert allocated[-1] == device.stats["allocated_bytes.all.current"]
    assert int(timeline.reserved[-1]) == device.stats["reserved_bytes.all.current"]
    assert int(timeline.allocated.max()) == device.peak_allocated_bytes
    assert int(timeline.reserved.max()) == device.peak_reserved_bytes
    assert np.all(np.diff(timeline.entry) >= 0)


def test_peak_is_the_first_moment_of_most_reserved(recorded: Recorded) -> None:
    peak = replay(recorded(two_layers)).devices[0].peak
    assert peak.reserved == 34 * MIB
    assert peak.allocated == peak.active == 24 * MIB + 1024
    assert peak.idle == peak.reserved - peak.active
    assert peak.inactive_split + peak.whole_segments == peak.idle


def test_replay_with_a_requested_address_policy(recorded: Recorded) -> None:
    recording = recorded(two_layers)
    for policy in ("bump", "firstfit"):
        fidelity = replay(recording, addresses=policy).devices[0].fidelity
        assert fidelity is not None
        assert fidelity.is_exact
    elsewhere = replay(recording, addresses="bump", base_address=GIB).devices[0].fidelity
    assert elsewhere is not None
    assert elsewhere.addresses_matched == 0


def test_invariants_are_checked_and_progress_is_reported(recorded: Recorded) -> None:
    calls: list[tuple[int, int]] = []
    recording = recorded(side_stream)
    replay(recording, check_every=1, progress=lambda done, total: calls.append((done, total)))
    assert calls
    assert all(0 <= done <= total == len(recording.devices[0]) for done, total in calls)


def test_recording_that_starts_mid_run(written: Callable[[Any], Recording]) -> None:
    a = CachingAllocator("1GiB", record_history=True)
    two_layers(a)
    pending = a.malloc(2 * MIB)
    assert pending is not None
    a.record_stream(pending, 4096)
    a.free(pending)
    a.take_history()
    a.synchronize()
    a.malloc(6 * MIB)
    device = replay(written(a.snapshot())).devices[0]
    assert device.fidelity is not None
    assert device.fidelity.is_exact
    assert "starts mid-run" in " ".join(device.notes)


def test_device_too_small_for_the_start_is_refused(
    written: Callable[[Any], Recording],
) -> None:
    a = CachingAllocator("1GiB", record_history=True)
    a.malloc(100 * MIB)
    a.take_history()
    a.malloc(1)
    recording = written(a.snapshot())
    with pytest.raises(ConfigError, match=r"cannot hold what device 0 had reserved"):
        replay(recording, device_memory="50MiB")


def test_all_devices_or_one_are_replayed(written: Callable[[Any], Recording]) -> None:
    first = CachingAllocator("1GiB", record_history=True)
    two_layers(first)
    second = CachingAllocator("1GiB", record_history=True, device=1)
    side_stream(second)
    one, other = first.snapshot(), second.snapshot()
    both = {
        **one,
        "segments": one["segments"] + other["segments"],
        "device_traces": [one["device_traces"][0], other["device_traces"][1]],
    }
    recording = written(both)
    run = replay(recording)
    assert [device.device for device in run.devices] == [0, 1]
    assert all(device.fidelity and device.fidelity.is_exact for device in run.devices)
    assert [device.device for device in replay(recording, device=1).devices] == [1]
    with pytest.raises(RecordingError, match="device 7 is not in the recording; it has: 0, 1"):
        replay(recording, device=7)


def test_inferred_empty_cache_is_noted(recorded: Recorded) -> None:
    def program(a: CachingAllocator) -> None:
        a.free(a.malloc(30 * MIB))
        a.malloc(100)
        a.empty_cache()
        a.malloc(200)

    device = replay(recorded(program)).devices[0]
    assert device.fidelity is not None
    assert device.fidelity.is_exact
    assert "a release of cached memory is attributed to a call of empty_cache" in device.notes


def test_inferred_full_device_is_noted(recorded: Recorded) -> None:
    def program(a: CachingAllocator) -> None:
        a.free(a.malloc(60 * MIB))
        a.malloc(80 * MIB)

    device = replay(recorded(program, "100MiB")).devices[0]
    assert device.fidelity is not None
    assert device.fidelity.is_exact
    assert device.stats["num_alloc_retries"] == 1
    assert "suggest 80.00 MiB to 138.00 MiB" in " ".join(device.notes)


def test_private_pools_are_followed_by_their_ids(recorded: Recorded) -> None:
    def program(a: CachingAllocator) -> None:
        a.malloc(100)
        a.begin_allocate_to_pool(3)
        graph = a.malloc(5 * MIB)
        a.end_allocate_to_pool(3)
        a.free(graph)
        a.malloc(5 * MIB)

    run = replay(recorded(program))
    fidelity = run.devices[0].fidelity
    assert fidelity is not None
    assert fidelity.is_exact


def test_garbage_collection_is_replayed(written: Callable[[Any], Recording]) -> None:
    """The recording shows the device, so the threshold is known."""
    a = CachingAllocator(
        "200MiB",
        "garbage_collection_threshold:0.5,per_process_memory_fraction:0.8",
        record_history=True,
    )
    for size in (30, 40, 50, 12, 60):
        a.free(a.malloc(size * MIB))
    recording = written(a.snapshot() | {"allocsim": {"device_memory": 200 * MIB}})
    device = replay(recording).devices[0]
    assert device.stats["num_device_free"] == 2
    assert device.stats["num_alloc_retries"] == 0
    assert device.fidelity is not None
    assert device.fidelity.is_exact


def test_pool_whose_memory_is_released_was_released_before(recorded: Recorded) -> None:
    """Releases by empty_cache, in a scope of another pool, and by a refused request."""

    def program(a: CachingAllocator) -> None:
        for pool in (3, 4, 5):
            for _ in range(2):
                a.begin_allocate_to_pool(pool)
                graph = a.malloc(30 * MIB)
                a.end_allocate_to_pool(pool)
                a.free(graph)
            a.release_pool(pool)
            a.release_pool(pool)
            if pool == 3:
                a.empty_cache()
        a.malloc(50 * MIB)
        a.malloc(1)

    device = replay(recorded(program, "100MiB")).devices[0]
    assert device.fidelity is not None
    assert device.fidelity.is_exact
    assert device.stats["num_device_free"] == 3
    assert device.stats["num_alloc_retries"] == 1


def test_pool_is_read_from_the_segment_before_2_12(written: Callable[[Any], Recording]) -> None:
    a = CachingAllocator("1GiB", torch_version="2.10", record_history=True)
    a.malloc(100)
    for _ in range(2):
        a.begin_allocate_to_pool(3)
        graph = a.malloc(5 * MIB)
        a.end_allocate_to_pool(3)
        a.free(graph)
        a.malloc(5 * MIB)
    recording = written(a.snapshot())
    assert recording.devices[0].pool_ids == ()
    fidelity = replay(recording).devices[0].fidelity
    assert fidelity is not None
    assert fidelity.is_exact


def test_expandable_segments_are_replayed(recorded: Recorded) -> None:
    def program(a: CachingAllocator) -> None:
        blocks = [a.malloc(30_000_000) for _ in range(4)]
        a.free(blocks[0])
        a.free(blocks[2])
        a.empty_cache()
        a.malloc(50_000_000)
        a.malloc(28_000_000)

    run = replay(recorded(program, "200MiB", "expandable_segments:True"))
    assert run.conf == "expandable_segments:True"
    fidelity = run.devices[0].fidelity
    assert fidelity is not None
    assert fidelity.is_exact


def test_settings_that_the_release_refuses(written: Callable[[Any], Recording]) -> None:
    a = CachingAllocator("1GiB", record_history=True)
    a.malloc(1)
    snapshot = a.snapshot()
    snapshot["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"] = "flying_segments:True"
    with pytest.raises(RecordingError, match=r"its settings 'flying_segments:True' are refused"):
        replay(written(snapshot))


def test_option_without_effect_is_noted(recorded: Recorded) -> None:
    run = replay(recorded(two_layers), "garbage_collection_threshold:0.6")
    assert any("no effect without a memory fraction" in note for note in run.notes)


def test_release_with_other_workspaces_is_noted() -> None:
    recording = load("traces/counted/gpt2-torch2.15.npz.gz")
    (said,) = [note for note in replay(recording, torch_version="2.14").notes if "cuBLAS" in note]
    assert said.startswith("the requests are those of PyTorch 2.15, which allocates and frees")
    assert said.endswith("2.14 keeps a cuBLAS workspace for each handle and stream (8.125 MiB, "
                         "32 MiB from capability 9.0 on)")  # fmt: skip
    assert not [note for note in replay(recording).notes if "cuBLAS" in note]


def test_release_is_noted_with_its_reason(recorded: Recorded) -> None:
    recording = recorded(two_layers)
    assert "newest release that writes this layout" in replay(recording).notes[0]
    assert replay(recording, torch_version="2.6").notes[0] == "PyTorch 2.6: as requested"
