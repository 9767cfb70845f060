"""What no allocator could do with less than, under every rounding."""

from __future__ import annotations

import numpy as np
import pytest

from allocsim.core import RELEASES, parse_conf
from allocsim.measures.lifetimes import Lifetimes
from allocsim.questions.tune.floor import LivePeak
from allocsim.units import KIB, MIB

# In use at once: 1.25 MiB and the 3 MiB that were there before; then that and 1,536 bytes.
BLOCKS = [(0, 4, 1280 * KIB), (-1, 9, 3 * MIB), (4, 6, 1536)]


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
    """What was there before the recording keeps its size: 3 MiB, which 2 divisions leave too."""
    peak = LivePeak(lifetimes(*BLOCKS))
    assert peak.under(parse_conf(conf, RELEASES["2.15"])) == expected


def test_what_was_there_before_is_not_rounded() -> None:
    peak = LivePeak(lifetimes((-1, 2, 5 * MIB), (1, 3, 5 * MIB)))
    assert peak.under(None) == 10 * MIB
    assert peak.under(parse_conf("roundup_power2_divisions:2", RELEASES["2.15"])) == 11 * MIB


def test_at_one_moment_what_ends_goes_first() -> None:
    peak = LivePeak(lifetimes((0, 5, 2 * MIB), (5, 9, 2 * MIB)))
    assert peak.under(None) == 2 * MIB
    assert peak.under(parse_conf("roundup_power2_divisions:4", RELEASES["2.15"])) == 2 * MIB
