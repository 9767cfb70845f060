"""Periods in the requests of a recording, such as training steps that occur several times in a row.

A detected period is only a hint: callers compare its entries before they skip it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from allocsim.replaying import Prepared

_Ints = NDArray[np.int64]


def period_starts(prepared: Prepared) -> _Ints:
    """Return the first entry of each period; empty if no periods were detected."""
    period = prepared.period
    if period is None:
        return np.zeros(0, dtype=np.int64)
    entries: _Ints = prepared.free_plan.steps.entry[period.first : period.end : period.stride]
    return entries


class EqualPeriods(NamedTuple):
    """Rows [first, end) of consecutive periods with `length` rows each."""

    first: int
    end: int
    length: int


def equal_periods(moment: _Ints, periods: _Ints) -> Iterator[EqualPeriods]:
    """Yield the rows of each sequence of at least two periods with equally many rows.

    moment: entry of each row, ascending.
    periods: first entry of each period.
    """
    starts = np.searchsorted(moment, periods)
    lengths = np.diff(starts)
    for first, last in true_ranges((lengths[1:] == lengths[:-1]) & (lengths[1:] > 0)):
        yield EqualPeriods(int(starts[first]), int(starts[last + 1]), int(lengths[first]))


def true_ranges(is_so: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Yield (first index, end) of each maximal range of True values."""
    changes = np.flatnonzero(np.diff(is_so, prepend=False, append=False))
    yield from zip(changes[::2].tolist(), changes[1::2].tolist(), strict=True)
