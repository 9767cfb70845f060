"""Largest request that fits the state of a snapshot."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from allocsim import CachingAllocator, OutOfMemoryError
from allocsim.errors import ConfigError, RecordingError
from allocsim.recording import Recording
from allocsim.replaying import state_source
from allocsim.units import GIB, MIB

Recorded = Callable[..., Recording]
CONFS = ("", "expandable_segments:True", "max_split_size_mb:64")


def program(seed: int) -> Callable[[CachingAllocator], None]:
    """Build a program of requests and frees on two streams that leave holes."""

    def run(gpu: CachingAllocator) -> None:
        rng = random.Random(seed)
        live = [
            gpu.malloc(
                rng.choice([700, 90_000, 3 * MIB, 17 * MIB, 90 * MIB]), rng.choice([0, 4096])
            )
            for _ in range(40)
        ]
        for ptr in rng.sample(live, 22):
            gpu.free(ptr)

    return run


@pytest.mark.parametrize("conf", CONFS)
@pytest.mark.parametrize("memory", [None, 8 * GIB])
@pytest.mark.parametrize("seed", range(4))
def test_largest_request_succeeds_and_one_byte_more_fails(
    recorded: Recorded, conf: str, memory: int | None, seed: int
) -> None:
    recording = recorded(program(seed), "4GiB", conf)
    source = state_source(recording, recording.devices[0], conf, device_memory=memory)
    for stream, size in source.largest_requests().items():
        source.allocator().malloc(size, stream)
        with pytest.raises(OutOfMemoryError):
            source.allocator().malloc(size + 1, stream)


def test_device_without_a_given_size_is_full(recorded: Recorded) -> None:
    recording = recorded(lambda gpu: gpu.malloc(30 * MIB), "1GiB")
    source = state_source(recording, recording.devices[0])
    assert source.is_taken_full
    assert source.device_memory == 30 * MIB
    assert source.largest_request() == 0


def test_device_smaller_than_its_segments_is_refused(recorded: Recorded) -> None:
    recording = recorded(lambda gpu: gpu.malloc(30 * MIB), "1GiB")
    with pytest.raises(ConfigError, match=r"20\.00 MiB is less than the 30\.00 MiB that the segm"):
        state_source(recording, recording.devices[0], device_memory=20 * MIB)


def test_device_without_segments_is_refused(recorded: Recorded) -> None:
    recording = recorded(lambda gpu: gpu.malloc(30 * MIB), "1GiB")
    empty = replace(recording.devices[0], segments=())
    with pytest.raises(RecordingError, match="device 0 has no segments"):
        state_source(recording, empty)
