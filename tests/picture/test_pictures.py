"""Data of pictures: shares of pixels, extremes of curves, axes, owners and sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from allocsim import top
from allocsim.analysis.picture import Picture, picture_of
from allocsim.analysis.picture.address_map import (
    AddressAxis,
    address_map,
    coverage,
    owners_of,
)
from allocsim.analysis.picture.states import CLASS_NAMES, block_sizes, class_of
from allocsim.errors import RecordingError
from allocsim.metrics.curve import extremes_of, levels_of
from allocsim.recording import load
from allocsim.units import KIB, MIB
from allocsim.workload.programs import oom, streams

OOM = Path(__file__).parents[2] / "traces" / "gpt2-ragged-oom-torch2.15.pickle.gz"


@pytest.fixture(scope="module")
def gpt2() -> Picture:
    return picture_of(load(OOM))


def share_of(
    left: float, right: float, low: float, high: float, shape: tuple[int, int]
) -> NDArray[np.float32]:
    """Return the shares of one rectangle."""
    return coverage(np.array([left]), np.array([right]), np.array([low]), np.array([high]), shape)


def one(left: float, right: float, low: float, high: float) -> list[list[float]]:
    """Return the shares on three rows of four pixels."""
    found = share_of(left, right, low, high, (3, 4))
    return [[round(float(x), 6) for x in row] for row in found]


def test_a_rectangle_on_pixel_borders_covers_whole_pixels() -> None:
    assert one(1, 3, 0, 2) == [[0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]]


def test_a_rectangle_between_borders_covers_parts() -> None:
    assert one(0.5, 2.25, 1.5, 2) == [[0, 0, 0, 0], [0.25, 0.5, 0.125, 0], [0, 0, 0, 0]]


def test_coverage_counts_a_rectangle_within_one_pixel() -> None:
    assert one(2.5, 2.51, 0.5, 0.6) == [[0, 0, 0.001, 0], [0, 0, 0, 0], [0, 0, 0, 0]]


def test_coverage_clips_rectangles_to_the_grid() -> None:
    assert one(-5, 9, 2, 7) == [[0] * 4, [0] * 4, [1] * 4]


@given(st.lists(st.tuples(*[st.floats(0, 20)] * 4), min_size=1, max_size=30))
def test_shares_add_up_to_areas(sides: list[tuple[float, float, float, float]]) -> None:
    found = np.zeros((20, 20))
    area = 0.0
    for a, b, c, d in sides:
        left, right, low, high = min(a, b), max(a, b), min(c, d), max(c, d)
        found += share_of(left, right, low, high, (20, 20))
        area += (right - left) * (high - low)
    assert found.sum() == pytest.approx(area, rel=1e-4, abs=1e-4)


def test_extremes_keep_a_spike_of_one_entry() -> None:
    values = np.zeros(1_000_003, dtype=np.int64)
    values[777_777] = 5
    values[3] = -2
    for level in levels_of(values, 8, 8, 1500):
        assert (level.low.min(), level.high.max()) == (-2, 5)
        assert level.high[777_777 // level.step] == 5
    assert [level.step for level in levels_of(values, 8, 8, 1500)] == [8, 64, 512, 4096]


def test_extremes_include_a_short_last_group() -> None:
    found = extremes_of(np.array([3, 1, 2, 9, 7]), 2)
    assert (found.low.tolist(), found.high.tolist()) == ([1, 2, 7], [3, 9, 7])


def test_a_short_curve_needs_no_levels() -> None:
    assert levels_of(np.arange(1500), 8, 8, 1500) == ()


def test_the_axis_has_no_gaps() -> None:
    axis = AddressAxis.of(np.array([100, 40, 45, 300]), np.array([50, 10, 10, 1]))
    assert (axis.start.tolist(), axis.length.tolist()) == ([40, 100, 300], [15, 50, 1])
    assert axis.total == 66
    assert axis.place(np.array([40, 54, 100, 149, 300])).tolist() == [0, 14, 15, 64, 65]


def test_axis_joins_adjacent_ranges() -> None:
    axis = AddressAxis.of(np.array([0, 512]), np.array([512, 512]))
    assert axis.start.tolist() == [0]


def test_the_map_of_the_classic_shows_three_holes() -> None:
    picture = picture_of(oom())
    found = address_map(picture.lives, picture.trace.frame_table, "state", (60, 16))
    assert found.axis_bytes == 60 * MIB, "a row of pixels is a MiB, a column an entry"
    used = found.layers["allocated"]
    assert used[:, 15].astype(int).tolist() == [0] * 9 + [1] * 9 + [0] * 11 + [1] * 9 + (
        [0] * 11 + [1] * 9 + [0] * 2
    )
    assert found.reserved[:, 0].sum() == 20
    assert found.reserved[:, 15].sum() == 60


@pytest.mark.parametrize("colouring", ["state", "size", "owner"])
def test_layers_hold_every_block_and_no_more_than_is_reserved(
    gpt2: Picture, colouring: str
) -> None:
    found = address_map(gpt2.lives, gpt2.trace.frame_table, colouring, (200, 300))
    used = sum(layer.astype(float) for layer in found.layers.values())
    assert np.all(used <= found.reserved + 1e-3)
    held = gpt2.curve.active.sum() / (found.axis_bytes * found.n_entries)
    assert float(np.mean(used)) == pytest.approx(held, rel=1e-3)
    assert found.n_blocks == 9_105


def test_owners_are_the_users_lines_the_greatest_first(gpt2: Picture) -> None:
    owners = owners_of(gpt2.lives.blocks, gpt2.trace.frame_table)
    assert len(owners.owner) == 9_105
    assert set(owners.owner.tolist()) == set(range(len(owners.names)))
    assert any(name.startswith("gpt.py:") for name in owners.names)
    held = (gpt2.lives.blocks.freed - gpt2.lives.blocks.born) * gpt2.lives.blocks.size
    weights = np.bincount(owners.owner, held.astype(float))
    assert (np.diff(weights) <= 0).all()


def test_size_class_includes_its_upper_limit() -> None:
    sizes = np.array([512, 16 * KIB, 16 * KIB + 512, MIB, MIB + 512, 10 * MIB, 300 * MIB])
    assert class_of(sizes).tolist() == [0, 0, 1, 1, 2, 2, 5]
    assert (CLASS_NAMES[1], CLASS_NAMES[5]) == ("up to 1 MiB", "above 200 MiB")


def test_block_sizes_of_the_fragmentation_example() -> None:
    picture = picture_of(oom())
    sizes = block_sizes(picture.lives, picture.at(15))
    by_edge = dict(zip(sizes.edges.tolist(), sizes.handed_out.tolist(), strict=False))
    assert (by_edge[8 * MIB], sum(by_edge.values())) == (6, 6)
    assert sizes.used_bytes.sum() == 27 * MIB
    free = dict(zip(sizes.edges.tolist(), sizes.free_bytes.tolist(), strict=False))
    assert (free[2 * MIB], free[8 * MIB]) == (6 * MIB, 27 * MIB)


@pytest.mark.parametrize("moment", ["peak", "oom", "end", 7])
def test_picture_and_top_choose_the_same_moments(moment: str | int) -> None:
    assert picture_of(oom()).at(moment).entry == top(oom(), moment).at.entry


def test_moment_oom_without_an_error_is_refused() -> None:
    with pytest.raises(RecordingError, match="the replay has no out-of-memory error"):
        picture_of(streams()).at("oom")
