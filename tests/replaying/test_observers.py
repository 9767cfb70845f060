"""Events that an observer receives during a replay."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from allocsim.core import Block, CachingAllocator
from allocsim.recording import Recording
from allocsim.replaying import replay
from allocsim.simulation import Observer, SimulatedOom
from allocsim.units import MIB

Recorded = Callable[..., Recording]


class Notes(Observer):
    """Observer that stores what it receives."""

    def __init__(self) -> None:
        self.grown: list[tuple[int, int]] = []
        self.failed: list[tuple[SimulatedOom, int, dict[int, int]]] = []

    def out_of_memory(
        self, allocator: CachingAllocator, oom: SimulatedOom, blocks: Mapping[int, Block]
    ) -> None:
        sizes = {address: block.size for address, block in blocks.items()}
        self.failed.append((oom, allocator.device.free, sizes))

    def grew(self, allocator: CachingAllocator, entry: int) -> None:
        self.grown.append((entry, allocator.reserved_bytes))


def three(gpu: CachingAllocator) -> None:
    gpu.malloc(30 * MIB, 4096)
    gpu.free(gpu.malloc(20 * MIB))
    gpu.malloc(50 * MIB)


def test_grew_is_called_once_for_each_segment(recorded: Recorded) -> None:
    notes = Notes()
    replay(recorded(three), observers=(notes,))
    # Each alloc follows its segment_alloc; the free has two entries.
    assert notes.grown == [(1, 30 * MIB), (3, 50 * MIB), (7, 100 * MIB)]


def test_out_of_memory_receives_figures_and_blocks(
    recorded: Recorded,
) -> None:
    notes = Notes()
    run = replay(recorded(three), device_memory="70MiB", observers=(notes,))
    ((oom, free, sizes),) = notes.failed
    assert run.devices[0].ooms == (oom,)
    assert (oom.entry, oom.stream, oom.is_recorded) == (7, 0, False)
    assert (oom.total_bytes, oom.free_bytes, free) == (70 * MIB, 40 * MIB, 40 * MIB)
    assert (oom.allocated_bytes, oom.reserved_bytes, oom.limit_bytes) == (30 * MIB, 30 * MIB, None)
    assert sizes == {0: 30 * MIB}


def test_out_of_memory_receives_the_limit(recorded: Recorded) -> None:
    conf = "per_process_memory_fraction:0.5"
    (oom,) = replay(recorded(three), conf, device_memory="100MiB").devices[0].ooms
    assert oom.limit_bytes == 50 * MIB
    assert oom.free_bytes == 70 * MIB


def test_recorded_error_that_succeeds_counts_as_growth(recorded: Recorded) -> None:
    def program(gpu: CachingAllocator) -> None:
        gpu.malloc(30 * MIB)
        try:
            gpu.malloc(80 * MIB)
        except RuntimeError:
            gpu.malloc(10 * MIB)

    notes = Notes()
    replay(recorded(program, "100MiB"), device_memory="200MiB", observers=(notes,))
    assert (2, 110 * MIB) in notes.grown
    assert notes.failed == []


def test_free_that_completes_before_an_error_does_not_serve_it(recorded: Recorded) -> None:
    # The free completes while the request fails, and the pool is not searched again: the replay
    # must not hand out the block that the recording says came too late.
    def program(gpu: CachingAllocator) -> None:
        gpu.free(gpu.malloc(100 * MIB))
        gpu.malloc(10 * MIB)
        aside = gpu.malloc(60 * MIB)
        assert aside is not None
        gpu.record_stream(aside, 4096)
        gpu.free(aside)
        gpu.malloc(MIB)
        try:
            gpu.malloc(80 * MIB)
        except RuntimeError:
            gpu.malloc(85 * MIB)

    device = replay(recorded(program, "122MiB")).devices[0]
    assert [oom.is_recorded for oom in device.ooms] == [True]
    assert device.fidelity is not None
    assert device.fidelity.is_exact
