"""The fast comparison of final segments agrees with the comparison block by block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from allocsim.core import ReplayAllocator
from allocsim.fidelity import FidelityCheck, ends_alike
from allocsim.recording import Trace
from allocsim.state import ALLOCATED, INACTIVE, PENDING, BlockState, SegmentState
from allocsim.units import MIB
from allocsim.workload import KINDS


def ended(conf: str) -> ReplayAllocator:
    """Return an allocator with allocated, pending and free blocks of two pools and two streams."""
    gpu = ReplayAllocator("16GiB", conf, record_history=True)
    held = [gpu.malloc(size, stream) for size in (512, 3 * MIB, 30 * MIB) for stream in (0, 1)]
    gpu.begin_allocate_to_pool(1)
    held.append(gpu.malloc(5 * MIB))
    gpu.end_allocate_to_pool(1)
    waits = gpu.malloc(4 * MIB)
    assert waits is not None and held[2] is not None
    gpu.record_stream(waits, 1)
    gpu.free(waits)
    gpu.free(held[2])
    gpu.malloc(7 * MIB)
    return gpu


def trace_of(segments: tuple[SegmentState, ...]) -> Trace:
    """Return an empty recording that ends with these segments."""
    return replace(KINDS["streams"]().devices[0], segments=segments)


def with_changes(segment: SegmentState) -> Iterator[SegmentState]:
    """Return the segments with one change."""
    yield replace(segment, stream=segment.stream + 1)
    yield replace(segment, is_small=not segment.is_small)
    yield replace(segment, pool_id=(0, 9))
    yield replace(segment, is_expandable=not segment.is_expandable)
    for number, block in enumerate(segment.blocks):
        for changed in other_blocks(block):
            blocks = list(segment.blocks)
            blocks[number] = changed
            yield replace(segment, blocks=tuple(blocks))
    first = segment.blocks[0]
    pieces = (
        replace(first, size=256),
        replace(first, address=first.address + 256, size=first.size - 256),
    )
    yield replace(segment, blocks=(*pieces, *segment.blocks[1:]))


def other_blocks(block: BlockState) -> Iterator[BlockState]:
    for state in {ALLOCATED, PENDING, INACTIVE} - {block.state}:
        yield replace(block, state=state)
    if block.state != INACTIVE:
        yield replace(block, requested_size=block.requested_size + 1)


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
def test_every_difference_is_found(conf: str) -> None:
    gpu = ended(conf)
    segments = gpu.segments()
    assert {block.state for s in segments for block in s.blocks} == {ALLOCATED, PENDING, INACTIVE}
    assert ends_alike(trace_of(segments), gpu)
    for number, segment in enumerate(segments):
        others = (segments[:number], segments[number + 1 :])
        assert not ends_alike(trace_of((*others[0], *others[1])), gpu)
        for changed in with_changes(segment):
            trace = trace_of((*others[0], changed, *others[1]))
            assert not ends_alike(trace, gpu)
            assert FidelityCheck(trace).result(gpu).segments_matched == len(segments) - 1


def test_stale_sizes_are_not_compared() -> None:
    gpu = ended("")
    stale = tuple(
        replace(
            segment,
            blocks=tuple(
                replace(block, requested_size=77) if block.state == INACTIVE else block
                for block in segment.blocks
            ),
        )
        for segment in gpu.segments()
    )
    assert stale != gpu.segments()
    assert ends_alike(trace_of(stale), gpu)
