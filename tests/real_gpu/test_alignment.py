"""Each kind of difference between sequences of entries is counted where it occurs."""

from __future__ import annotations

import random

import numpy as np
import pytest

from benchmarks.real_gpu.alignment import Codes, Differences, differences, run_order


def codes(*parts: range | list[int]) -> Codes:
    return np.array([code for part in parts for code in part], dtype=np.int64)


EQUAL = Differences(missing=0, added=0, moved=0)


def test_equal_sequences_have_no_differences() -> None:
    assert differences(codes(range(10_000)), codes(range(10_000))) == EQUAL
    assert differences(codes(), codes()) == EQUAL


def test_missing_entry_does_not_make_the_later_ones_differ() -> None:
    whole, part = codes(range(20_000)), codes(range(100), range(101, 20_000))
    assert differences(whole, part) == Differences(missing=1, added=0, moved=0)
    assert differences(part, whole) == Differences(missing=0, added=1, moved=0)


def test_swapped_entries_are_moved() -> None:
    other = codes(range(100), [101, 100], range(102, 9_000))
    assert differences(codes(range(9_000)), other) == Differences(missing=0, added=0, moved=1)


def test_replaced_entry_is_missing_and_added() -> None:
    other = codes(range(500), [-1], range(501, 1_000))
    assert differences(codes(range(1_000)), other) == Differences(missing=1, added=1, moved=0)


def test_entries_after_the_end_of_the_other_sequence_are_counted() -> None:
    assert differences(codes(range(50)), codes(range(47))) == Differences(3, 0, 0)
    assert differences(codes(), codes(range(5_000))) == Differences(0, 5_000, 0)


def test_sequences_that_never_meet_are_compared_as_multisets() -> None:
    forward, backward = codes(range(6_000)), codes(range(5_999, -1, -1))
    assert differences(forward, backward) == Differences(0, 0, 6_000)


@pytest.mark.parametrize("seed", range(20))
def test_counts_explain_the_difference_of_the_multisets(seed: int) -> None:
    chance = random.Random(seed)
    first = [chance.randrange(40) for _ in range(3_000)]
    second = list(first)
    for _ in range(chance.randrange(1, 30)):
        del second[chance.randrange(len(second))]
        second.insert(chance.randrange(len(second)), chance.randrange(40))
    found = differences(codes(first), codes(second))
    assert found != EQUAL
    assert found.missing - found.added == len(first) - len(second)
    lost = sum(max(first.count(code) - second.count(code), 0) for code in range(40))
    assert lost <= found.missing <= found.missing + found.moved <= 30


def test_only_entries_inside_a_run_are_sorted() -> None:
    values = codes([5, 9, 7, 8, 1, 4, 3])
    in_run = np.array([False, True, True, True, False, True, True])
    assert values[run_order(values, in_run)].tolist() == [5, 7, 8, 9, 1, 3, 4]
