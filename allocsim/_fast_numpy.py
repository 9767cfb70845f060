"""Faster versions of some NumPy functions, for long columns.

The docstring of each function names the NumPy call whose result it returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from struct import pack
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

_Number = TypeVar("_Number", np.int32, np.int64, np.uint64)

_WIDEST_TABLE = 4
"""Largest ratio of the numbers' range to their count for which `stable_order` uses a table.

With a wider range, a sort is faster.
"""

_DIGIT = 16
"""Bits of the widest integers for which NumPy's stable sort is the fast radix sort."""

_MOST_DIGITS = 2
"""Largest number of 16-bit digits of a value for which a radix sort is faster than one sort."""


def any_of(codes: NDArray[np.uint8], wanted: Iterable[int]) -> NDArray[np.bool_]:
    """Return `np.isin(codes, wanted)`, ten times as fast for a few wanted codes."""
    found = np.zeros(codes.shape, dtype=bool)
    for code in wanted:
        # A comparison with an enumeration member would first convert all bytes to 64-bit integers.
        found |= codes == int(code)
    return found


def distinct(numbers: NDArray[_Number]) -> NDArray[_Number]:
    """Return `np.unique(numbers)`, 5 to 20 times as fast, by a vectorised sort."""
    ordered = np.sort(numbers)
    is_first = np.ones(len(ordered), dtype=bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return ordered.compress(is_first)


def numbered(numbers: NDArray[_Number]) -> tuple[NDArray[_Number], NDArray[np.intp]]:
    """Return `np.unique(numbers, return_inverse=True)`, fast for few distinct values."""
    if len(numbers) and numbers.min() == numbers.max():
        return numbers[:1].copy(), np.zeros(len(numbers), dtype=np.intp)
    found = distinct(numbers)
    return found, np.searchsorted(found, numbers)


def int_column(values: Sequence[int]) -> NDArray[np.int64]:
    """Return `np.array(values, dtype=np.int64)`, but faster.

    values: a list, or a `Column` of 64-bit integers from the compiled core.
    """
    return _words(values, "q")


def address_column(values: Sequence[int]) -> NDArray[np.uint64]:
    """Return `np.array(values, dtype=np.uint64)`, but faster.

    values: a list, or a `Column` of 64-bit integers from the compiled core.
    """
    return _words(values, "Q")


def _words(values: Sequence[int], kind: str) -> NDArray[Any]:
    """Convert integers to an array through `struct`, which takes a third of NumPy's time.

    kind: "q" for signed and "Q" for unsigned 64-bit integers.
    """
    if not isinstance(values, list):
        return np.array(values).view(kind)
    return np.frombuffer(pack(f"{len(values)}{kind}", *values), kind)


def stable_order(numbers: NDArray[np.uint64] | NDArray[np.int64]) -> NDArray[np.intp]:
    """Return `np.argsort(numbers, kind="stable")`, by a faster method where the values permit.

    The method is a table indexed by value, a radix sort over 16-bit digits, or one sort of 64-bit
    words that hold a value and its position.  A million addresses take 13 to 23 ms on an AMD
    EPYC; a sort of 64-bit words takes 54 ms.
    """
    if not len(numbers):
        return np.empty(0, dtype=np.intp)
    low = numbers.min()
    span = int(numbers.max()) - int(low) + 1
    words = (numbers - low).view(np.uint64)
    if len(numbers) <= span <= _WIDEST_TABLE * len(numbers):
        # Use 32-bit positions if they suffice, since the cost of a table is allocating its memory.
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
    """Return the stable order of words, by a radix sort over their `n_digits` digits of 16 bits."""
    order: NDArray[np.intp] = np.argsort(words.astype(np.uint16), kind="stable")
    for number in range(1, n_digits):
        digit = (words >> np.uint64(number * _DIGIT)).astype(np.uint16)
        order = order.take(np.argsort(digit.take(order), kind="stable"))
    return order


_LONGEST = (32 << 20) - (1 << 13)
"""Bytes of the array that `keep_pages` frees: 32 MiB, less glibc's bookkeeping.

Freeing a larger array would not raise the threshold above which glibc returns memory to the kernel.
"""


@cache
def keep_pages() -> None:
    """Make glibc keep up to 64 MiB of freed memory instead of returning it to the kernel.

    This saves a fifth of the first replay of a recording with the compiled core, and a twentieth in
    plain Python (benchmarks/results/speed.md).  Other C libraries are unaffected.
    """
    # Freeing an untouched array of the maximal size raises glibc's threshold at no cost.
    np.empty(_LONGEST, dtype=np.uint8)
