"""Address map of memory: a picture with history entries from left to right and addresses upwards.

A pixel is a rectangle of several entries and several addresses.  Its values are the share of this
rectangle that was reserved, and the share that each layer covers.  A layer is the set of blocks
with one state, size class or owner.  Addresses that were never reserved are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import stable_order
from allocsim.analysis.picture.states import CLASS_NAMES, Lives, class_of
from allocsim.metrics import code_of
from allocsim.ownership import Blocks
from allocsim.recording import FrameTable

_Floats = NDArray[np.floating[Any]]


def coverage(
    left: _Floats, right: _Floats, low: _Floats, high: _Floats, shape: tuple[int, int]
) -> NDArray[np.float32]:
    """Return an image: the share of each pixel that the rectangles cover, from 0 to 1.

    left, right, low, high: coordinates of the rectangles' sides, in pixels; parts outside the image
        are ignored.
    shape: (rows, columns) of the image; row i extends from i to i + 1.
    """
    rows, columns = shape
    grid = np.zeros((rows + 2) * (columns + 2))
    across, along = _coverage_changes(low, high, rows), _coverage_changes(left, right, columns)
    for row, row_weight in across:
        for column, column_weight in along:
            at = row * (columns + 2) + column
            grid += np.bincount(at, row_weight * column_weight, len(grid))
    shares = grid.reshape(rows + 2, columns + 2).cumsum(axis=0).cumsum(axis=1)
    share: NDArray[np.float32] = np.clip(shares[:rows, :columns], 0, 1).astype(np.float32)
    return share


def _coverage_changes(
    first: _Floats, last: _Floats, length: int
) -> list[tuple[NDArray[np.int64], _Floats]]:
    # Items are (pixel, weight).  The running sum of the weights up to a pixel is the covered length
    # in this pixel.
    found = []
    for side, sign in ((first, 1.0), (last, -1.0)):
        end = np.clip(side, 0, length)
        pixel = end.astype(np.int64)
        rest = end - pixel
        found += [(pixel, sign * (1 - rest)), (pixel + 1, sign * rest)]
    return found


_Column = NDArray[np.int64]
_Addresses = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, eq=False)
class AddressAxis:
    """Axis of addresses, without the addresses that were never reserved.

    start, length: first address and bytes of each contiguous range of addresses that were reserved.
    offset: position of each range on the axis, in bytes from the origin.
    """

    start: _Addresses
    length: _Column
    offset: _Column

    @classmethod
    def of(cls, address: _Addresses, size: _Column) -> AddressAxis:
        order = stable_order(address)
        ends = address + size.astype(np.uint64)
        address, end = address[order], np.maximum.accumulate(ends[order])
        begins = np.ones(len(address), dtype=bool)
        begins[1:] = address[1:] > end[:-1]
        start = address[begins]
        last = np.append(np.flatnonzero(begins)[1:] - 1, len(address) - 1)[: len(start)]
        length = (end[last] - start).astype(np.int64)
        return cls(start, length, np.cumsum(length) - length)

    @property
    def total(self) -> int:
        return int(self.length.sum())

    def place(self, address: _Addresses) -> _Column:
        row = np.searchsorted(self.start, address, side="right") - 1
        return self.offset[row] + (address - self.start[row]).astype(np.int64)


ALLOCATED, WAITING, OTHERS = "allocated", "freed, waiting for a stream", "other lines"
_MOST_OWNERS = 6
BEFORE, UNKNOWN = "from before the recording", "no stack recorded"

_Shares = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class AddressMap:
    """Picture of memory, with history entries from left to right and addresses upwards.

    Row 0 has the lowest addresses and column 0 the first entries.
    reserved: share of each pixel's area that was reserved, from 0 to 1.
    layers: dictionary from the name of a layer to the share of each pixel that its blocks cover.
        For each pixel, the shares of all layers add up to at most `reserved`.
    axis_bytes: length of the address axis.
    """

    reserved: _Shares
    layers: dict[str, _Shares]
    axis_bytes: int
    n_entries: int
    n_blocks: int

    @property
    def entries_per_column(self) -> float:
        return self.n_entries / int(self.reserved.shape[1])

    @property
    def bytes_per_row(self) -> float:
        return self.axis_bytes / int(self.reserved.shape[0])


def axis_of(lives: Lives) -> AddressAxis:
    return AddressAxis.of(lives.segments.address, lives.segments.size)


def address_map(
    lives: Lives, table: FrameTable, colouring: str, shape: tuple[int, int]
) -> AddressMap:
    """Return the address map of a replay: a picture of the memory in use, by entry and address.

    lives: lifetimes of the blocks and segments in the replay.
    table: frame table of the recording, which gives the names of owners (lines of code).
    colouring: property by which blocks are divided into layers: "state", "size" or "owner".
    shape: (rows, columns) of the picture, in pixels.
    """
    axis, blocks, segments = axis_of(lives), lives.blocks, lives.segments
    x, y = shape[1] / max(lives.n_entries, 1), shape[0] / max(axis.total, 1)

    def shares(address: _Addresses, size: _Column, born: _Column, end: _Column) -> _Shares:
        if not len(address):
            return np.zeros(shape, dtype=np.float32)
        low = axis.place(address)
        return coverage(born * x, end * x, low * y, (low + size) * y, shape)

    return AddressMap(
        reserved=shares(segments.address, segments.size, segments.born, segments.died),
        layers={
            name: shares(blocks.address[rows], blocks.size[rows], born[rows], end[rows])
            for name, rows, born, end in _layers(blocks, table, colouring)
        },
        axis_bytes=axis.total,
        n_entries=lives.n_entries,
        n_blocks=len(blocks),
    )


_Layer = tuple[str, NDArray[np.bool_], NDArray[np.int64], NDArray[np.int64]]


def _layers(blocks: Blocks, table: FrameTable, colouring: str) -> list[_Layer]:
    # Items are (name, mask of the blocks, first entry and end of each block).
    if colouring == "state":
        everything = np.ones(len(blocks), dtype=bool)
        waits = blocks.completed > blocks.freed
        return [
            (ALLOCATED, everything, blocks.born, blocks.freed),
            (WAITING, waits, blocks.freed, blocks.completed),
        ]
    if colouring == "size":
        kinds, names = class_of(blocks.size), CLASS_NAMES
    else:
        owners = owners_of(blocks, table)
        kinds, names = owners.owner, owners.names
        if len(names) > _MOST_OWNERS + 1:
            kinds = np.minimum(kinds, _MOST_OWNERS)
            names = (*names[:_MOST_OWNERS], OTHERS)
    return [(name, kinds == i, blocks.born, blocks.completed) for i, name in enumerate(names)]


@dataclass(frozen=True, slots=True, eq=False)
class Owners:
    """Owner (line of code) of each block.

    owner: for each block, the index of its owner in `names`.
    names: names of the owners, sorted by bytes times entries held, largest first.
    """

    owner: NDArray[np.int64]
    names: tuple[str, ...]


def owners_of(blocks: Blocks, table: FrameTable) -> Owners:
    """Return the owner (line of code) of each block.

    table: frame table of the recording, from which stacks are read.
    """
    stacks, which = np.unique(blocks.stack, return_inverse=True)
    numbers: dict[str, int] = {BEFORE: 0, UNKNOWN: 1}
    codes = [code_of(table.stack(stack)) if stack >= 0 else None for stack in stacks.tolist()]
    named = [UNKNOWN if code is None else str(code) for code in codes]
    of_stack = [numbers.setdefault(name, len(numbers)) for name in named]
    owner = np.array(of_stack, dtype=np.int64)[which]
    owner = np.where((blocks.born < 0) & (blocks.stack < 0), 0, owner)
    held = (blocks.freed - np.maximum(blocks.born, 0)) * blocks.size.astype(np.float64)
    weight = np.bincount(owner, held, len(numbers))
    order = [int(i) for i in np.argsort(-weight, kind="stable") if (owner == i).any()]
    rank = np.zeros(len(numbers), dtype=np.int64)
    rank[order] = np.arange(len(order))
    names = list(numbers)
    return Owners(rank[owner], tuple(names[i] for i in order))
