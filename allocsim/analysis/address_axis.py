"""Addresses without the gaps between segments: one axis on which everything reserved lies.

Invariant: order is kept and no byte that was ever reserved shares its place with another; a gap
that was never reserved has no length.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["AddressAxis"]

_Column = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class AddressAxis:
    """start, length: of each range of addresses without a gap.  offset: its place on the axis."""

    start: _Column
    length: _Column
    offset: _Column

    @classmethod
    def of(cls, address: _Column, size: _Column) -> AddressAxis:
        """The axis of the ranges [address, address + size), which may overlap."""
        order = np.argsort(address, kind="stable")
        address, end = address[order], np.maximum.accumulate((address + size)[order])
        begins = np.ones(len(address), dtype=bool)
        begins[1:] = address[1:] > end[:-1]
        start = address[begins]
        last = np.append(np.flatnonzero(begins)[1:] - 1, len(address) - 1)[: len(start)]
        length = end[last] - start
        return cls(start, length, np.cumsum(length) - length)

    @property
    def total(self) -> int:
        """Bytes of the whole axis."""
        return int(self.length.sum())

    def place(self, address: _Column) -> _Column:
        """Where `address`, which was reserved at some time, lies on the axis."""
        row = np.searchsorted(self.start, address, side="right") - 1
        return self.offset[row] + address - self.start[row]
