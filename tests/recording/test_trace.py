"""Turns by address equal the block entries, and tiles equal the blocks of the final segments."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocsim.recording import Action, Turn
from allocsim.recording.trace import ByAddress, Tiles
from allocsim.state import ALLOCATED, INACTIVE, PENDING, BlockState, SegmentState
from allocsim.units import MIB

Row = tuple[Action, int]
ROWS = st.lists(st.tuples(st.sampled_from([*Action]), st.integers(0, 3)), max_size=12)


def of(rows: list[Row]) -> ByAddress:
    action = np.array([action for action, _ in rows], dtype=np.uint8)
    return ByAddress.of(action, np.array([512 * place for _, place in rows], dtype=np.uint64))


def one_by_one(rows: list[Row], first: int = 0) -> list[tuple[int, int, Turn]]:
    """Return address, entry and kind of each turn (trace.py), sorted by address."""
    turns: list[tuple[int, int, Turn]] = []
    for entry, (action, place) in enumerate(rows):
        follows = entry > first and rows[entry - 1] == (Action.FREE_REQUESTED, place)
        if entry < first or action > Action.FREE_COMPLETED:
            continue
        if action == Action.FREE_COMPLETED and follows:
            turns[-1] = (512 * place, entry, Turn.FREE)
        else:
            turns.append((512 * place, entry, Turn(action)))
    return sorted(turns)


def rows_of(turns: ByAddress) -> list[tuple[int, int, Turn]]:
    columns = (turns.addr.tolist(), turns.entry.tolist(), map(Turn, turns.kind.tolist()))
    return list(zip(*columns, strict=True))


@given(ROWS)
def test_turns_are_the_entries_by_address(rows: list[Row]) -> None:
    turns, expected = of(rows), one_by_one(rows)
    assert len(turns) == len(expected)
    assert rows_of(turns) == expected
    addr = [row[0] for row in expected]
    assert turns.goes_on.tolist() == [
        addr[i : i + 1] == addr[i + 1 : i + 2] for i in range(len(addr))
    ]


@given(ROWS, st.integers(0, 12))
def test_turns_since_an_entry_are_those_of_later_entries(rows: list[Row], first: int) -> None:
    """A free that is cut in two is only a completion."""
    assert rows_of(of(rows).since(first)) == one_by_one(rows, first)


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
