"""Columns of the final segments' blocks equal the block states."""

from __future__ import annotations

from dataclasses import replace

import pytest

from allocsim.recording.trace import Tiles
from allocsim.state import ALLOCATED, INACTIVE, PENDING, BlockState, SegmentState
from allocsim.units import MIB

BASE = 1 << 40


def segment(address: int, *sizes: int, is_small: bool = True) -> SegmentState:
    """Return a segment with blocks of these sizes, in use, pending and free in turn."""
    blocks, at = [], address
    for number, size in enumerate(sizes):
        state = (ALLOCATED, PENDING, INACTIVE)[number % 3]
        blocks.append(BlockState(at, size, size - 12, state))
        at += size
    return SegmentState(address, at - address, 0, is_small, (0, 0), False, tuple(blocks))


SOUND = (segment(BASE, 512, 1024, 2048), segment(BASE + 4 * MIB, 3 * MIB, 512, is_small=False))


def test_tiles_have_a_row_for_each_block() -> None:
    tiles = Tiles.of(SOUND)
    assert tiles is not None and tiles.are_sound
    blocks = [block for each in SOUND for block in each.blocks]
    assert tiles.blocks == blocks
    assert tiles.address.tolist() == [block.address for block in blocks]
    assert tiles.size.tolist() == [block.size for block in blocks]
    assert tiles.requested_size.tolist() == [block.requested_size for block in blocks]
    assert tiles.is_active.tolist() == [True, True, False, True, True]
    assert tiles.is_pending.tolist() == [False, True, False, False, True]
    assert tiles.is_small.tolist() == [True, True, True, False, False]


def damaged(name: str) -> tuple[SegmentState, ...]:
    first, second = SOUND
    one, two, three = first.blocks
    changes = {
        "a gap": (replace(first, blocks=(one, replace(two, address=two.address + 512), three)),),
        "an empty block": (replace(first, blocks=(replace(one, size=0), *first.blocks)),),
        "a short segment": (replace(first, blocks=(one, two)),),
        "no block": (replace(first, blocks=()),),
        "overlapping segments": (first, segment(BASE + 2048, 512)),
        "the wrong order": (second, first),
        "a block before": (replace(first, address=BASE - 512, total_size=4096),),
        "beyond the last address": (segment((1 << 64) - 512, 512),),
    }
    return changes[name]


@pytest.mark.parametrize(
    "name",
    [
        "a gap",
        "an empty block",
        "a short segment",
        "no block",
        "overlapping segments",
        "the wrong order",
        "a block before",
        "beyond the last address",
    ],
)
def test_tiles_of_invalid_segments_are_not_sound(name: str) -> None:
    tiles = Tiles.of(damaged(name))
    assert tiles is not None and not tiles.are_sound


def test_tiles_of_numbers_beyond_64_bits_are_none() -> None:
    assert Tiles.of((segment((1 << 64) - 512, 512, 512),)) is None


def test_tiles_of_an_empty_device_are_sound() -> None:
    tiles = Tiles.of(())
    assert tiles is not None and tiles.are_sound and not len(tiles.blocks)
