"""The C arrays of the compiled core behave like the lists and dictionaries that they replace."""

from __future__ import annotations

import gc
import weakref
from bisect import bisect_left
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from allocsim.core import IS_COMPILED, MALLOC, ReplayAllocator, step_rows
from allocsim.core.block import Block
from allocsim.core.columns import Blocks, Column, Keys, Names, column_of, find
from allocsim.core.pool import BlockPool, KeyLayout

only_compiled = pytest.mark.skipif(not IS_COMPILED, reason="plain Python has the lists themselves")

NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1)
KEYS = st.lists(st.integers(0, 40) | st.integers(1 << 60, (1 << 64) - 1), unique=True).map(sorted)


@given(keys=KEYS, key=st.integers(0, 41) | st.integers(1 << 60, 1 << 70), data=st.data())
def test_a_key_is_found_where_bisect_finds_it(
    keys: list[int], key: int, data: st.DataObject
) -> None:
    """Keys too wide for a machine word stay in a list."""
    high = data.draw(st.integers(0, len(keys)))
    low = data.draw(st.integers(0, high))
    kept = Keys()
    for each in keys:
        kept.append(each)
    for those in (kept, keys, [key << 64 for key in keys]):
        asked = key << 64 if those and those[-1] >> 64 else key
        assert find(those, asked) == bisect_left(list(those), asked)
        assert find(those, asked, low, high) == bisect_left(list(those), asked, low, high)


@given(st.lists(st.tuples(st.sampled_from(["insert", "del", "set"]), st.integers(0, 99))))
def test_keys_are_put_in_taken_out_and_replaced(steps: list[tuple[str, int]]) -> None:
    mine, expected = Keys(), list[int]()
    for number, (what, at) in enumerate(steps):
        if what == "insert":
            for keys in (mine, expected):
                keys.insert(min(at, len(keys)), number)
        elif at < len(expected):
            for keys in (mine, expected):
                if what == "del":
                    del keys[at]
                else:
                    keys[at] = number
    assert list(mine) == expected
    assert len(mine) == len(expected)


@only_compiled
def test_what_is_not_there_is_refused() -> None:
    keys, column, names, blocks = Keys(), Column(), Names(), Blocks()
    for call in (
        lambda: keys[0],
        lambda: column[0],
        lambda: keys.__delitem__(0),
        lambda: blocks[0],
        lambda: blocks.pop(0),
    ):
        with pytest.raises(IndexError):
            call()
    with pytest.raises(KeyError):
        names[7]
    with pytest.raises(OverflowError):
        keys.append(1 << 64)
    with pytest.raises(OverflowError):
        column.append(1 << 63)


@given(st.lists(NUMBERS, max_size=300))
def test_a_column_keeps_numbers_in_their_order(numbers: list[int]) -> None:
    column = column_of(list(numbers))
    assert list(column) == numbers
    assert len(column) == len(numbers)
    assert np.array(column, dtype=np.int64).tolist() == numbers
    column.append(-5)
    assert column[-1] == column[len(numbers)] == -5
    column.clear()
    assert not len(column)


@only_compiled
def test_a_column_that_is_looked_at_does_not_grow() -> None:
    """Otherwise the exported buffer would refer to freed memory."""
    column = column_of(list(range(64)))
    view = memoryview(column)  # type: ignore[arg-type]
    with pytest.raises(BufferError):
        column.append(1)
    view.release()
    column.append(1)
    assert column[64] == 1


def block(number: int) -> Block:
    return Block(number * 512, 512, 0, BlockPool(True, KeyLayout()), 0)


PLACES = st.integers(0, 99) | st.integers(0, 3)
"""Indices near the front, where the words before move, and others further back."""


@given(st.lists(st.tuples(st.sampled_from(["insert", "insert", "pop", "del"]), PLACES)))
def test_blocks_stand_in_order(steps: list[tuple[str, int]]) -> None:
    mine, expected = Blocks(), list[Block]()
    for number, (what, at) in enumerate(steps):
        if what == "insert":
            new = block(number)
            for blocks in (mine, expected):
                blocks.insert(min(at, len(expected)), new)
        elif at < len(expected):
            if what == "pop":
                assert mine.pop(at) is expected.pop(at)
            else:
                del mine[at], expected[at]
    assert list(mine) == expected
    assert len(mine) == len(expected)
    assert mine[1:] == expected[1:]
    if expected:
        assert mine[0] is expected[0]
        assert mine[-1] is expected[-1]


def test_a_queue_of_blocks_keeps_its_length() -> None:
    """Blocks inserted at the back and removed at the front move through the memory."""
    blocks = Blocks()
    for number in range(1000):
        blocks.insert(number, block(number))
        if number >= 20:
            assert blocks.pop(0).ptr == (number - 20) * 512
    assert [each.ptr // 512 for each in blocks] == list(range(980, 1000))


class Witness:
    """Object for a weak reference."""


@pytest.mark.parametrize("takes_out", [False, True])
def test_free_blocks_are_collected_with_their_pool(takes_out: bool) -> None:
    """Block and pool refer to each other: only the garbage collector frees them."""
    pool = BlockPool(True, KeyLayout())
    witness: Any = Witness()
    for number in range(50):
        pool.insert(Block(number * 512, 512, 0, pool, 0))
    pool.of(0).blocks[20].capture_uses = witness
    seen = weakref.ref(witness)
    if takes_out:
        pool.remove(pool.of(0).blocks[20])
    del witness, pool
    gc.collect()
    assert seen() is None


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 70) | st.integers(0, (1 << 64) - 1))))
def test_blocks_are_kept_by_name(steps: list[tuple[bool, int]]) -> None:
    """Includes names that share a slot, after others were removed."""
    mine: Any = Names()
    expected: dict[int, Block] = {}
    for number, (puts, name) in enumerate(steps):
        if puts:
            mine[name] = expected[name] = block(number)
        else:
            assert mine.pop(name, None) is expected.pop(name, None)
        assert (name in mine) is (name in expected)
    assert mine == expected
    assert dict(mine.items()) == expected
    assert sorted(mine) == sorted(mine.keys()) == sorted(expected)
    assert len(mine) == len(expected) == len(list(mine.values()))
    assert mine | {-1: None} == expected | {-1: None}
    assert {**expected} | mine == expected


def test_rows_of_columns_are_rows_of_numbers() -> None:
    columns: list[NDArray[Any]] = [
        np.array([MALLOC, MALLOC], dtype=np.uint8),
        np.array([1, 1 << 63], dtype=np.uint64),
        np.array([512, 700], dtype=np.int64),
        np.array([0, 0], dtype=np.uint64),
    ]
    for column in columns:
        column.flags.writeable = False  # like arrays of a mapped file
    assert list(step_rows(columns)) == [(MALLOC, 1, 512, 0), (MALLOC, 1 << 63, 700, 0)]
    a = ReplayAllocator("1GiB")
    a.free(a.malloc(512))
    rows = step_rows(columns)
    assert a.play(rows, {}, []) is None
    assert a.named_blocks.keys() == {1, 1 << 63}
    assert list(rows) == []


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
def test_blocks_as_columns_are_those_of_the_segments(conf: str) -> None:
    gpu = ReplayAllocator("1GiB", conf, base_address=1 << 46)
    held = [gpu.malloc(size, stream) for stream in (0, 1) for size in (700, 3 << 20, 30 << 20)]
    for each in held[::2]:
        gpu.free(each)
    (ptr, size, requested, allocated, heads), n_active = gpu.block_columns()
    segments = gpu.segments()
    blocks = [block for segment in segments for block in segment.blocks]
    sized = list(zip(ptr, size, strict=True))
    assert sorted(sized) == [(block.address, block.size) for block in blocks]
    assert sorted(head.ptr for head in heads) == [segment.address for segment in segments]
    active = zip((at for at, _ in sized), list(requested), list(allocated), strict=True)
    assert sorted(list(active)[:n_active]) == [
        (block.address, block.requested_size, True) for block in blocks if block.is_active
    ]
