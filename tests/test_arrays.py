"""Functions of allocsim._fast_numpy equal NumPy's."""

from __future__ import annotations

from struct import error as StructError  # noqa: N812  (it is a class)

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocsim._fast_numpy import (
    address_column,
    any_of,
    distinct,
    int_column,
    numbered,
    stable_order,
)
from allocsim.recording import Action

WORDS = st.integers(0, 2**64 - 1)
FEW = st.integers(0, 5)


@given(st.lists(st.integers(0, 255)), st.sets(st.sampled_from(Action)))
def test_codes_are_found_as_isin_finds_them(codes: list[int], wanted: set[Action]) -> None:
    column = np.array(codes, dtype=np.uint8)
    assert any_of(column, wanted).tolist() == np.isin(column, list(wanted)).tolist()


@given(st.one_of(st.lists(FEW), st.lists(WORDS)))
def test_what_comes_up_comes_once_in_order(numbers: list[int]) -> None:
    column = np.array(numbers, dtype=np.uint64)
    assert distinct(column).tolist() == sorted(set(numbers))
    signed = column.view(np.int64)
    assert distinct(signed).tolist() == np.unique(signed).tolist()


@given(st.one_of(st.lists(FEW), st.lists(WORDS), st.lists(st.just(2**64 - 1))))
def test_what_comes_up_is_numbered_in_order(numbers: list[int]) -> None:
    column = np.array(numbers, dtype=np.uint64)
    found, which = numbered(column)
    expected, places = np.unique(column, return_inverse=True)
    assert (found.tolist(), which.tolist()) == (expected.tolist(), places.tolist())
    assert found.dtype == column.dtype


@given(st.one_of(st.lists(FEW), st.lists(WORDS), st.lists(FEW.map(lambda n: 2**64 - 1 - n))))
def test_addresses_come_in_the_order_of_a_stable_sort(addresses: list[int]) -> None:
    column = np.array(addresses, dtype=np.uint64)
    assert stable_order(column).tolist() == np.argsort(column, kind="stable").tolist()


@given(
    st.lists(st.integers(0, 40)), st.integers(1, 2**20), st.integers(0, 2**60), st.integers(0, 20)
)
def test_so_do_those_of_one_digit_of_two_and_of_more(
    numbers: list[int], factor: int, low: int, zeros: int
) -> None:
    """The numbers differ in 16, 32 or more bits, at any position."""
    column = np.array([low + (number * factor << zeros) for number in numbers], dtype=np.uint64)
    assert stable_order(column).tolist() == np.argsort(column, kind="stable").tolist()


@pytest.mark.parametrize("bits", [15, 16, 17, 31, 32, 33, 48])
def test_the_highest_bit_of_a_digit_counts(bits: int) -> None:
    column = np.array([1 << bits, 3, (1 << bits) + 1, 1, 3] * 3, dtype=np.uint64)
    assert stable_order(column).tolist() == np.argsort(column, kind="stable").tolist()


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_so_do_numbers_with_a_sign(numbers: list[int]) -> None:
    column = np.array(numbers, dtype=np.int64)
    assert stable_order(column).tolist() == np.argsort(column, kind="stable").tolist()


@pytest.mark.parametrize("span", [2**55 - 1, 2**55])
def test_the_widest_span_that_a_word_holds_beside_a_place(span: int) -> None:
    # 256 places need nine bits, which leaves 55 of 64.
    column = np.array([span, 0, span, 0] * 64, dtype=np.uint64) + np.uint64(2**40)
    assert stable_order(column).tolist() == np.argsort(column, kind="stable").tolist()


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1)))
def test_a_list_becomes_a_column(numbers: list[int]) -> None:
    assert int_column(numbers).tolist() == numbers
    addresses = [number + (1 << 63) for number in numbers]
    column = address_column(addresses)
    assert column.dtype == np.uint64 and column.tolist() == addresses


def test_what_a_word_does_not_hold_is_refused() -> None:
    for number in (-1, 1 << 64):
        with pytest.raises(StructError):
            address_column([number])
    for number in (-(1 << 63) - 1, 1 << 63):
        with pytest.raises(StructError):
            int_column([number])
