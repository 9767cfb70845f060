"""Strips of a moment: every segment, by pool, in colours proportional to bytes."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from allocsim import load
from allocsim.analysis.picture import Instant
from allocsim.plot import picture_of
from allocsim.report.html.markup import packed_strip, state_legend
from allocsim.report.packing import pool_text
from allocsim.state import ALLOCATED, DEFAULT_POOL, INACTIVE, PENDING, BlockState, SegmentState
from allocsim.units import GIB, MIB

from .page import Page

TRACES = Path(__file__).parents[2] / "traces"
PATH = re.compile(r'<path d="([^"]*)" style="fill: var\((--[\w-]+)\)"/>')
BOX = re.compile(r"M(\d+) (\d+)h(\d+)v(\d+)h-(\d+)z")


def segment(address: int, size: int, used: int, waiting: int = 0, **more: Any) -> SegmentState:
    """Return a segment with a used block, then a pending block, then free space."""
    ends = [(used, ALLOCATED), (waiting, PENDING), (size - used - waiting, INACTIVE)]
    blocks, at = [], address
    for length, state in ends:
        if length:
            blocks.append(BlockState(at, length, length, state))
            at += length
    kind: dict[str, Any] = {
        "stream": 0,
        "is_small": size == 2 * MIB,
        "pool_id": DEFAULT_POOL,
        "is_expandable": False,
    }
    return SegmentState(address, size, blocks=tuple(blocks), **(kind | more))


def boxes(strip: str, paint: str) -> list[tuple[int, int, int, int]]:
    """Return (x, y, width, height) of each box in the colour `paint`."""
    found = "".join(path for path, colour in PATH.findall(strip) if colour == paint)
    return [(int(x), int(y), int(w), int(h)) for x, y, w, h, _ in BOX.findall(found)]


@pytest.fixture(scope="module")
def full() -> Instant:
    """Return a full card: 1,700 segments, from 2 MiB to 2 GiB."""
    sizes = [2 * GIB, *[90 * MIB] * 199, *[20 * MIB] * 700, *[2 * MIB] * 800]
    return Instant(0, tuple(segment(i << 34, size, size) for i, size in enumerate(sizes)))


def test_strip_shows_each_of_seventeen_hundred_segments(full: Instant) -> None:
    strip = packed_strip(full)
    grounds = boxes(strip, "--free")
    whole = sum(wide for _, _, wide, _ in grounds)
    assert min(wide for _, _, wide, _ in grounds) >= 1, "a segment goes on in the next row"
    rows = {(x, y) for x, y, _, _ in grounds if x}
    assert len(rows) > 1_600, "each begins at a place of its own"
    assert whole >= 1_700 * 3
    assert len(strip) < 200_000
    assert Page(strip).wrong == []


def test_widths_on_the_strip_are_proportional_to_bytes(full: Instant) -> None:
    """A segment of 90 MiB is about 4.5 times as wide as one of 20."""
    few = Instant(0, full.segments[190:210])
    widths = Counter(wide for _, _, wide, _ in boxes(packed_strip(few), "--free"))
    (one, _), (other, _) = widths.most_common(2)
    assert max(one, other) / min(one, other) == pytest.approx(4.5, rel=0.02)


def test_strip_draws_used_pending_and_free_bytes_at_their_place() -> None:
    strip = packed_strip(Instant(0, (segment(0, 40 * MIB, 10 * MIB, 20 * MIB),)))
    first_row = 1200
    (_, _, ground, _), *_ = boxes(strip, "--free")
    assert ground == first_row
    used = sum(wide for _, _, wide, _ in boxes(strip, "--kind-0"))
    waiting = sum(wide for _, _, wide, _ in boxes(strip, "--kind-1"))
    assert waiting == pytest.approx(2 * used, abs=2)
    assert "large: 40.00 MiB in 1 segment, 10.00 MiB allocated, 20.00 MiB waiting" in strip


def test_strip_shows_a_small_block_in_a_large_segment() -> None:
    """512 bytes of 2 GiB are less than a thousandth of a pixel."""
    strip = packed_strip(Instant(0, (segment(0, 2 * GIB, 512),)))
    assert boxes(strip, "--kind-0") == [(0, 15, 1, 1)]


def test_pools_have_names_and_the_default_ones_come_first() -> None:
    private: dict[str, Any] = {"pool_id": (0, 1), "stream": 7}
    instant = Instant(
        0,
        (
            segment(0, 20 * MIB, MIB, **private),
            segment(1 << 40, 20 * MIB, MIB),
            segment(2 << 40, 2 * MIB, MIB),
            segment(3 << 40, 2 * MIB, MIB, is_expandable=True),
        ),
    )
    names = re.findall(r"<figcaption>([^:]*):", packed_strip(instant))
    assert names == ["expandable", "large", "small", "large, private pool (0, 1), stream 0x7"]
    assert pool_text(is_small=True, is_expandable=False, pool=(0, 0), stream=0) == "small"
    legend = state_legend(instant)
    assert "allocated 4.00 MiB" in legend
    assert "free 40.00 MiB" in legend


def test_strip_names_the_private_pools_of_a_replay() -> None:
    """The segments of CUDA graphs are not those of the default pool."""
    picture = picture_of(load(TRACES / "recordings" / "cuda_graphs-default-torch2.6.npz.gz"))
    instant = picture.at()
    pools = {each.pool_id for each in instant.segments}
    assert pools == {DEFAULT_POOL, (0, 1), (0, 2)}
    assert "private pool (0, 2)" in packed_strip(instant)
    held = {
        pool: sum(s.total_size for s in instant.segments if s.pool_id == pool) for pool in pools
    }
    assert held[0, 2] == pytest.approx(1.07 * GIB, rel=0.01)
