"""Formatting of ranges: two ends that look the same are one size."""

from __future__ import annotations

import pytest

from allocsim.units import GIB, MIB, format_range


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (GIB + 1, 3 * GIB // 2, "1.00 GiB to 1.50 GiB"),
        (0, 512, "0 bytes to 512 bytes"),
        (20 * MIB, 20 * MIB, "20.00 MiB"),
        (20 * MIB, 20 * MIB + 1024, "20.00 MiB"),
    ],
)
def test_a_range_of_sizes_that_read_the_same_is_one_size(low: int, high: int, text: str) -> None:
    assert format_range(low, high) == text
