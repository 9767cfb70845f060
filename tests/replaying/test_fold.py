"""NumPy and plain Python give the same statistics."""

from __future__ import annotations

import random

import pytest

from allocsim.core.journal import SHORT, Journal, Moves, fold_records
from allocsim.simulation.timeline import FEW, fold, fold_allocated, fold_columns


def journal(count: int, seed: int, waiting: bool) -> Journal:
    """Build a journal of both pools, with every kind of change of inactive splits."""
    rng = random.Random(seed)
    sizes, requests, inactive = [], [], []
    waited_at, waits = [], []
    for at in range(count):
        if waiting and rng.random() < 0.2:
            size = 512 * rng.randrange(1, 1 << 16)
            waited_at.append(at)
            waits.append(2 * size * rng.choice((1, -1)) + rng.randrange(2))
        sign, size = rng.choice((1, -1)), 512 * rng.randrange(1, 1 << 16)
        sizes.append(sign * size)
        requests.append(rng.randrange(1, size + 1))
        splits = rng.randrange(-2, 2)
        whole = 16 * sign * 512 * rng.randrange(1, 1 << 16) + 2 * splits
        inactive.append(rng.choice((0, 4 * splits + 2, whole)) + rng.randrange(2))
    if waiting:
        waited_at += [count, count]
        waits += [2 * 512, 1 - 2 * 4096]
    return sizes, requests, inactive, waited_at, waits


@pytest.mark.parametrize("count", [1, FEW - 1, FEW, 1000, 3000])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("waiting", [False, True])
def test_numpy_and_python_give_equal_moves(count: int, seed: int, waiting: bool) -> None:
    records = journal(count, seed, waiting)
    assert fold(records) == fold_columns(records) == fold_records(records)


def test_short_record_moves_the_bytes_of_its_block() -> None:
    """A block at the front of a free tail is allocated and freed, with 1 and 16 times the size."""
    size = 4096
    sizes, requests = [size, -size, size, -size], [size] * 4
    short = fold_records((sizes, requests, [2, 6, -2, 2], [], []))
    long = fold_records(
        (sizes, requests, [-16 * size, 16 * size + 2, -16 * size - 2, 16 * size], [], [])
    )
    assert short == long
    assert short[0][5] == Moves(change=0, peak=1, grown=1)
    assert short[0][6] == Moves(change=0, peak=0, grown=2 * size)
    assert max(map(abs, [2, 6, -2, 2])) + 1 < SHORT


@pytest.mark.parametrize("is_small", [0, 1])
def test_peaks_are_kept_for_each_pool(is_small: int) -> None:
    pools = [is_small, 1 - is_small, is_small]
    records: Journal = ([512, 1024, -512] * FEW, [400, 1000, 400] * FEW, pools * FEW, [], [])
    every, small, large = fold_columns(records)
    mine, other = (small, large) if is_small else (large, small)
    assert mine[0] == Moves(change=0, peak=1, grown=FEW)
    assert mine[1] == Moves(change=0, peak=512, grown=512 * FEW)
    assert other[4] == Moves(change=1000 * FEW, peak=1000 * FEW, grown=1000 * FEW)
    assert every[1].peak == 1024 * FEW + 512


@pytest.mark.parametrize("count", [4, FEW])
def test_pending_block_is_active_and_not_allocated(count: int) -> None:
    """A block is freed, another block is allocated, and then the first free completes."""
    sizes = [512, 1024, -512, -1024] * count
    at = [i + later for i in range(0, 4 * count, 4) for later in (1, 2)]
    waits = [2 * 512, -2 * 512] * count
    every, small, large = fold(
        (sizes, [2 * 512, 2 * 1024] * 2 * count, [0] * len(sizes), at, waits)
    )
    assert every == large
    assert [moves.peak for moves in every[:4]] == [1, 1024, 2, 1536]
    assert [moves.change for moves in every] == [0] * 7
    assert small == (Moves(),) * 7


@pytest.mark.parametrize("count", [0, 1, FEW, 1000])
@pytest.mark.parametrize("waiting", [False, True])
def test_fold_allocated_counts_allocated_bytes_only(count: int, waiting: bool) -> None:
    records = journal(count, 3, waiting)
    every, small, large = fold_allocated(records)
    assert every[1] == fold_records(records)[0][1]
    assert {*map(str, (*every[:1], *every[2:], *small, *large))} == {str(Moves())}
