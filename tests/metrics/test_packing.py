"""Packings have no overlaps and are between the bounds."""

from __future__ import annotations

import random

import numpy as np
import pytest

from allocsim.metrics.lifetimes import Lifetimes
from allocsim.metrics.packing import Packing, pack


def lifetimes(*rows: tuple[int, int, int]) -> Lifetimes:
    """Return lifetimes of rows (start, end, size)."""
    start, end, size = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    return Lifetimes(start, end, size)


def chance(seed: int, count: int) -> Lifetimes:
    """Return the blocks of a program that frees at random."""
    rng = random.Random(seed)
    starts = [rng.randrange(1000) for _ in range(count)]
    return lifetimes(*((at, at + rng.randint(1, 200), rng.randint(1, 50) * 512) for at in starts))


def check(blocks: Lifetimes, packing: Packing) -> None:
    """Check that live blocks do not overlap, and that the height is the highest end."""
    assert packing.height == (packing.offset + blocks.size).max()
    assert packing.offset.min() >= 0
    for i in range(len(blocks)):
        meets = (blocks.start < blocks.end[i]) & (blocks.end > blocks.start[i])
        shares = (packing.offset < packing.offset[i] + blocks.size[i]) & (
            packing.offset + blocks.size > packing.offset[i]
        )
        assert np.flatnonzero(meets & shares).tolist() == [i]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("most_placed", [0, 30, 300])
def test_packing_of_random_programs_is_valid(seed: int, most_placed: int) -> None:
    blocks = chance(seed, 300)
    packing = pack(blocks, most_placed)
    check(blocks, packing)
    assert packing.height >= blocks.peak_bytes
    assert packing.n_online in (300 - most_placed, 300)


def test_the_lower_of_the_two_is_taken() -> None:
    heights = [[pack(chance(seed, 300), most).height for most in (300, 0)] for seed in range(4)]
    assert all(foreseen <= online for foreseen, online in heights)


def test_consecutive_blocks_share_an_offset() -> None:
    packing = pack(lifetimes((0, 5, 512), (5, 9, 512), (9, 12, 512)))
    assert (packing.height, packing.offset.tolist()) == (512, [0, 0, 0])


def test_the_peak_counts_what_ends_before_what_begins() -> None:
    assert lifetimes((0, 5, 512), (5, 9, 1024)).peak_bytes == 1024
    assert lifetimes((0, 6, 512), (5, 9, 1024)).peak_bytes == 1536


def test_a_gap_between_two_is_used() -> None:
    # 1,024 are at 0 until entry 4, with the long 512 above; then the hole holds two of 512.
    blocks = lifetimes((0, 4, 1024), (0, 9, 512), (4, 9, 512), (4, 9, 512))
    packing = pack(blocks)
    check(blocks, packing)
    assert packing.height == blocks.peak_bytes == 1536


def test_packing_of_no_blocks_has_height_0() -> None:
    assert pack(lifetimes()).height == 0
    assert lifetimes().peak_bytes == 0


@pytest.mark.slow
def test_half_a_million_blocks() -> None:
    blocks = chance(1, 500_000)
    packing = pack(blocks, 2000)
    assert blocks.peak_bytes <= packing.height < 2 * blocks.peak_bytes
