"""Measures of fragmentation on programs small enough to check manually."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from allocsim import CachingAllocator
from allocsim.metrics.curve import Measures, measures_of
from allocsim.metrics.lifetimes import lifetimes_of
from allocsim.recording import Recording, load
from allocsim.replaying import replay
from allocsim.units import MIB

TRACES = Path(__file__).parents[2] / "traces"
Recorded = Callable[..., Recording]


def measured(recording: Recording, conf: str | None = None, memory: str = "16GiB") -> Measures:
    run = replay(recording, conf, device_memory=memory)
    return measures_of(recording.devices[0], run.devices[0])


def two_loads(gpu: CachingAllocator) -> None:
    gpu.free(gpu.malloc(530 * MIB))
    gpu.malloc(270 * MIB)
    gpu.malloc(530 * MIB)


def test_the_stranded_half_of_a_block(recorded: Recorded) -> None:
    found = measured(recorded(two_loads, "16GiB"))
    assert found.peak_reserved_bytes == 1060 * MIB
    assert found.peak_allocated_bytes == found.lower_bound_bytes == 800 * MIB
    assert found.utilization == 800 / 1060
    assert found.overhead_of_peaks == pytest.approx(1060 / 800 - 1)
    assert found.overhead_at_peak_reserved == pytest.approx(1060 / 800 - 1)
    # Steps: 530 of 530, 0 of 530, 270 of 530, 800 of 1,060.
    assert found.mean_overhead == pytest.approx((530 * 3 + 1060) / (530 + 270 + 800) - 1)
    assert found.packed_bytes == 800 * MIB
    assert (found.avoidable_bytes, found.open_bytes) == (260 * MIB, 0)
    assert found.slack_share == 0


def test_slack_is_the_part_of_blocks_beyond_the_requests(recorded: Recorded) -> None:
    found = measured(recorded(lambda gpu: gpu.malloc(19 * MIB + 512 * 1024), "16GiB"))
    assert found.slack_share == pytest.approx(1 - 19.5 / 20)
    assert found.lower_bound_bytes == 19 * MIB + 512 * 1024


def test_measures_end_where_the_replay_stops(recorded: Recorded) -> None:
    found = measured(recorded(two_loads, "16GiB"), memory="800MiB")
    assert found.lower_bound_bytes == 530 * MIB
    assert found.n_blocks == 2


def test_avoided_error_counts_as_a_block(recorded: Recorded) -> None:
    recording = recorded(two_loads, "800MiB")
    assert measured(recording, memory="800MiB").n_blocks == 2
    found = measured(recording, memory="2000MiB")
    assert (found.n_blocks, found.lower_bound_bytes) == (3, 800 * MIB)


def test_blocks_from_before_the_recording_count(recorded: Recorded) -> None:
    def program(gpu: CachingAllocator) -> None:
        first = gpu.malloc(30 * MIB)
        gpu.malloc(40 * MIB)
        gpu.take_history()  # earlier entries are lost
        gpu.free(first)
        gpu.malloc(10 * MIB)

    blocks = lifetimes_of(recorded(program, "16GiB").devices[0])
    rows = sorted(zip(blocks.start.tolist(), (blocks.size // MIB).tolist(), strict=True))
    assert rows == [(-1, 30), (-1, 40), (2, 10)]
    assert blocks.peak_bytes == 70 * MIB


def test_most_of_the_ragged_run_s_peak_is_avoidable() -> None:
    recording = load(TRACES / "gpt2-ragged-torch2.15.pickle.gz")
    found = measured(recording, memory="24000MiB")
    assert found.peak_reserved_bytes == 9_256_828_928  # as real PyTorch reserved
    # Expandable segments really allocated this much at their peak; only slack differs.
    assert found.lower_bound_bytes == 5_670_153_216
    assert found.open_bytes < MIB
    assert found.avoidable_bytes > 3 * 1024 * MIB
