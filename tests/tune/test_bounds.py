"""Lower bounds for every allocator, under every rounding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocsim.analysis.tune.lower_bound import LivePeak, _without_equal_periods
from allocsim.core import RELEASES, parse_conf
from allocsim.metrics.lifetimes import Lifetimes
from allocsim.units import KIB, MIB
from tests.metrics.test_best_fit import Loop, loops

# Live: 1.25 MiB and 3 MiB from before the recording; later 1,536 bytes more.
BLOCKS = [(0, 4, 1280 * KIB), (-1, 9, 3 * MIB), (4, 6, 1536)]
NO_ROUNDS = np.zeros(0, dtype=np.int64)


def lifetimes(*rows: tuple[int, int, int]) -> Lifetimes:
    start, end, size = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    return Lifetimes(start, end, size)


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ("", 3 * MIB + 1280 * KIB),
        ("roundup_power2_divisions:4", 3 * MIB + 1280 * KIB),
        ("roundup_power2_divisions:2", 3 * MIB + 1536 * KIB),
        ("roundup_power2_divisions:[1:2,>:1]", 3 * MIB + 1536 * KIB),
    ],
)
def test_requests_count_as_they_are_rounded(conf: str, expected: int) -> None:
    """The block from before the recording keeps its 3 MiB, also under 2 divisions."""
    peak = LivePeak(lifetimes(*BLOCKS), NO_ROUNDS)
    assert peak.under(parse_conf(conf, RELEASES["2.15"])) == expected


def test_blocks_from_before_the_recording_are_not_rounded() -> None:
    peak = LivePeak(lifetimes((-1, 2, 5 * MIB), (1, 3, 5 * MIB)), NO_ROUNDS)
    assert peak.under(None) == 10 * MIB
    assert peak.under(parse_conf("roundup_power2_divisions:2", RELEASES["2.15"])) == 11 * MIB


def test_ends_count_before_starts_at_the_same_entry() -> None:
    peak = LivePeak(lifetimes((0, 5, 2 * MIB), (5, 9, 2 * MIB)), NO_ROUNDS)
    assert peak.under(None) == 2 * MIB
    assert peak.under(parse_conf("roundup_power2_divisions:4", RELEASES["2.15"])) == 2 * MIB


# -- equal rounds ------------------------------------------------------------------------

ROUNDINGS = ["", "roundup_power2_divisions:2", "roundup_power2_divisions:[1:8,>:4]"]


@given(loops(), st.sampled_from(ROUNDINGS))
def test_repeated_rounds_do_not_change_the_live_peak(loop: Loop, conf: str) -> None:
    config = parse_conf(conf, RELEASES["2.15"])
    every, some = LivePeak(loop.blocks, NO_ROUNDS), LivePeak(loop.blocks, loop.periods)
    assert some.under(config) == every.under(config)


def moves_left(*rows: tuple[int, int, int], length: int) -> int:
    """Return the number of moves kept for each setting; each row is a block of one round."""
    blocks = lifetimes(
        *((at + k * length, end + k * length, n) for k in range(9) for at, end, n in rows)
    )
    sizes = np.unique(blocks.size)
    moves = np.concatenate([2 * np.searchsorted(sizes, blocks.size) + ends for ends in (0, 1)])
    return len(_without_equal_periods(moves[blocks.turns], blocks.moments, length * np.arange(9)))


def test_once_keeps_one_of_equal_rounds() -> None:
    """The first round frees no earlier block, and the end of the last is unknown."""
    assert moves_left((0, 3, MIB), (1, 12, KIB), length=10) == 3 + 4 + (4 + 1)


def test_once_keeps_rounds_that_accumulate_memory() -> None:
    assert moves_left((0, 3, MIB), (1, 999, KIB), length=10) == 9 * 4
