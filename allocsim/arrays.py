"""Faster replacements for some of NumPy's calls on long columns.

Rule: each returns what the call of NumPy returns that its docstring names, element for element.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import pack
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "address_column",
    "any_of",
    "distinct",
    "int_column",
    "numbered",
    "stable_order",
]

_Number = TypeVar("_Number", np.int32, np.int64, np.uint64)

_WIDEST_TABLE = 4
"""Rows of a table for each number; of more, to look through them takes longer than a sort."""

_DIGIT = 16
"""Bits of the longest numbers that NumPy sorts by counting them."""

_MOST_DIGITS = 2
"""Of more, to sort by each takes as long as to sort by all at once."""


def any_of(codes: NDArray[np.uint8], wanted: Iterable[int]) -> NDArray[np.bool_]:
    """`np.isin`: which of `codes`, actions or kinds of steps, are among a few.

    Bytes are compared a register at a time as long as the other side is a plain integer, where an
    enumeration's member makes words of them first; a table for `isin` takes ten times as long.
    """
    found = np.zeros(codes.shape, dtype=bool)
    for code in wanted:
        found |= codes == int(code)
    return found


def distinct(numbers: NDArray[_Number]) -> NDArray[_Number]:
    """`np.unique(numbers)`: each that comes up, ascending.

    Sorted by vector instructions; a table of what was seen takes five to twenty times as long.
    """
    ordered = np.sort(numbers)
    is_first = np.ones(len(ordered), dtype=bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return ordered.compress(is_first)


def numbered(
    numbers: NDArray[_Number],
) -> tuple[NDArray[_Number], NDArray[np.intp]]:
    """`np.unique(numbers, return_inverse=True)`: each that comes up, and which of them each is.

    For few that differ, streams and pools, of which there is mostly one: no sort of places.
    """
    if len(numbers) and numbers.min() == numbers.max():
        return numbers[:1].copy(), np.zeros(len(numbers), dtype=np.intp)
    found = distinct(numbers)
    return found, np.searchsorted(found, numbers)


def int_column(values: Sequence[int]) -> NDArray[np.int64]:
    """`np.array(values, dtype=np.int64)` of a list, or of a column of the compiled core.

    Raises struct.error for what 64 bits do not hold.
    """
    return _words(values, "q")


def address_column(values: Sequence[int]) -> NDArray[np.uint64]:
    """The same of numbers from 0 to 2**64 - 1."""
    return _words(values, "Q")


def _words(values: Sequence[int], kind: str) -> NDArray[Any]:
    """kind: of a word of 64 bits, "q" with its sign and "Q" without, for NumPy and `struct` alike,
    which takes a third of the time of NumPy's own ways."""
    if not isinstance(values, list):
        return np.array(values).view(kind)
    return np.frombuffer(pack(f"{len(values)}{kind}", *values), kind)


def stable_order(
    numbers: NDArray[np.uint64] | NDArray[np.int64],
) -> NDArray[np.intp]:
    """`np.argsort(numbers, kind="stable")`: what brings numbers in order, equal ones as they stand.

    Numbers that all differ and lie close together go each to its own row of a table.  Those that
    differ in 32 bits or fewer, as addresses do, are sorted by one digit of 16 bits after the other,
    for which NumPy counts; a million addresses take 13 to 23 ms on an AMD EPYC, and 54 as words.
    Else a number and its place, side by side in one word, are sorted by their values, which vector
    instructions do; where a word does not hold both, as NumPy does.
    """
    if not len(numbers):
        return np.empty(0, dtype=np.intp)
    low = numbers.min()
    span = int(numbers.max()) - int(low) + 1
    words = (numbers - low).view(np.uint64)
    if len(numbers) <= span <= _WIDEST_TABLE * len(numbers):
        # Half words where they do: memory that is fresh each time is what a table costs.
        width = np.int32 if len(numbers) < 1 << 31 else np.intp
        table: NDArray[np.signedinteger] = np.full(span, -1, dtype=width)
        table[words.view(np.int64)] = np.arange(len(numbers), dtype=width)
        distinct_order = table[table >= 0]
        if len(distinct_order) == len(numbers):
            return distinct_order.astype(np.intp)
    used = int(np.bitwise_or.reduce(words))
    n_zeros = max((used & -used).bit_length() - 1, 0)
    n_digits = -(-(used >> n_zeros).bit_length() // _DIGIT)
    if n_digits <= _MOST_DIGITS:
        words >>= np.uint64(n_zeros)
        return _order_by_digits(words, n_digits)
    bits = len(numbers).bit_length()
    if (span - 1).bit_length() + bits > 64:
        order: NDArray[np.intp] = np.argsort(numbers, kind="stable")
        return order
    words <<= np.uint64(bits)
    words |= np.arange(len(numbers), dtype=np.uint64)
    words.sort()
    words &= np.uint64((1 << bits) - 1)
    places: NDArray[np.intp] = words.view(np.intp)
    return places


def _order_by_digits(words: NDArray[np.uint64], n_digits: int) -> NDArray[np.intp]:
    """The stable order of words of so many digits, sorted by the lowest first."""
    order: NDArray[np.intp] = np.argsort(words.astype(np.uint16), kind="stable")
    for number in range(1, n_digits):
        digit = (words >> np.uint64(number * _DIGIT)).astype(np.uint16)
        order = order.take(np.argsort(digit.take(order), kind="stable"))
    return order
