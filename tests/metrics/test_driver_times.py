"""Compare the table of driver times with its source file and with recordings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from allocsim.recommend.offer import H200, Points, interpolated
from allocsim.units import MIB
from benchmarks.driver_times import quartiles, times_of

CARD = Path(__file__).parents[2] / "traces" / "h200"
MEASURED = json.loads((CARD / "driver.json").read_text())


def rounded(nanoseconds: float) -> float:
    return round(nanoseconds / 1000, 1)


def test_table_holds_the_medians_of_the_measurement() -> None:
    rows = [row for row in MEASURED["cuMemAlloc"] if row["mib"] <= 16 << 10]
    assert dict(H200.malloc) == {r["mib"]: rounded(r["malloc_ns"]["median"]) for r in rows}
    assert dict(H200.free) == {r["mib"]: rounded(r["free_ns"]["median"]) for r in rows}
    for name in ("create", "map", "access", "unmap", "release"):
        expected = {row["mib"]: rounded(row[name]["median"]) for row in MEASURED["virtual"]}
        assert dict(getattr(H200, name)) == expected, name
    assert MEASURED["driver_text"] == H200.driver
    assert MEASURED["name"] == H200.card


def test_malloc_beside_held_segments_takes_as_long_as_measured() -> None:
    held = MEASURED["malloc_20mib_600_held_ns"]
    for part, n_held in (("first100", 50), ("last100", 550)):
        expected = held[part]["median"] / 1000
        assert H200.of_call("malloc", 20 * MIB, n_held) == pytest.approx(expected, rel=0.005)


@pytest.mark.parametrize(
    ("mib", "expected"),
    [(1, 5.0), (2, 5.0), (3, 10.0), (4, 15.0), (6, 16.0), (8, 17.0), (16, 21.0)],
)
def test_times_are_linear_between_points_and_beyond_the_last(mib: int, expected: float) -> None:
    points: Points = ((2, 5.0), (4, 15.0), (8, 17.0))
    assert interpolated(points, mib * MIB) == pytest.approx(expected)


def test_range_is_that_of_the_recordings() -> None:
    """`cases` is not part of the source distribution."""
    if not list(CARD.glob("cases/*.npz.gz")):
        pytest.skip("the recordings of the cases are in the repository only")
    low, _, high = quartiles(times_of(CARD))
    assert (round(low, 1), round(high, 1)) == (H200.low, H200.high)
