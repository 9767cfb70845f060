"""The law of one program in one regime: its requests and frees in order, at any sizes.

Rule: only sizes and the number of layers change, the order never; where another regime begins,
another law holds, or none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allocsim.errors import ConfigError
from allocsim.laws.formula import Formula
from allocsim.laws.linked import Alive, Links, links_of
from allocsim.laws.repeated import Repeated

__all__ = ["EMPTY_CACHE", "FREE", "REQUEST", "Law", "Requests", "Rows", "requests_of"]

REQUEST, FREE, EMPTY_CACHE = 0, 1, 2
"""What a row does."""


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """A program at some sizes; row i is its row i.

    kind: REQUEST, FREE or EMPTY_CACHE.  block: the number of the block, by request.  size: bytes of
    a request, 0 in other rows.  stack: of a request, its stack's number; -1 in other rows.
    reset: the row at which the peaks are reset; -1 if they never are.
    stretches: the rows at which stretches begin that are nearly alike, and the end of the last.
    """

    kind: NDArray[np.uint8]
    block: NDArray[np.int64]
    size: NDArray[np.int64]
    stack: NDArray[np.int64]
    reset: int
    stretches: tuple[int, ...] = ()

    def with_the_making(self) -> Requests:
        """The same program where nothing that the making of the model left is given back, and its
        peaks count: both follow the making, and neither is a request."""
        kept = self.kind != EMPTY_CACHE
        n_before = np.concatenate(([0], np.cumsum(kept)))
        stretches = tuple(n_before[list(self.stretches)].tolist())
        return Requests(
            self.kind[kept],
            self.block[kept],
            self.size[kept],
            self.stack[kept],
            reset=-1,
            stretches=stretches,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """A stretch of a program at some sizes; each column has a row for each.

    row: of the law.  kind, kin: its own.  value: of a request its bytes, of a free how many younger
    blocks of its kin there are.
    """

    row: NDArray[np.int64]
    kind: NDArray[np.uint8]
    kin: NDArray[np.int64]
    value: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Law:
    """A program with one copy of each part, of `layers` layers; each column has a row for each.

    kind: what the row does.  kin: of a request, its stack's number; of a free, its block's.
    number: of a request, which of `formulas` its bytes are; of a free, how many younger blocks of
    its kin there are.  by_copy, by_copies: how that number of a free, and the bytes of a request,
    grow with each copy and with the number of copies.
    parts: see `Repeated`.  reset: the row at which the peaks are reset.
    proofs: recordings that came out row by row and were not used for the formulas.
    period: layers of a copy.
    """

    kind: NDArray[np.uint8]
    kin: NDArray[np.int64]
    number: NDArray[np.int64]
    by_copy: NDArray[np.int64]
    by_copies: NDArray[np.int64]
    parts: Sequence[tuple[int, int]]
    formulas: tuple[Formula, ...]
    layers: int
    reset: int
    proofs: int
    period: int = 1

    def requests(self, variables: Mapping[str, int], layers: int) -> Requests:
        """The program at these variables, with the errors of `rows` and `requests_of`."""
        rows = self.rows(variables, layers)
        reset = int(np.flatnonzero(rows.row == self.reset)[0])
        return requests_of([rows], [""], reset, layers)

    def n_rows(self, layers: int) -> int:
        """How many rows it has."""
        more = sum(stop - start for start, stop in self.parts)
        return len(self.kind) + more * ((layers - self.layers) // self.period)

    def rows(self, variables: Mapping[str, int], layers: int) -> Rows:
        """Its rows at these variables, whose blocks are not looked up.

        Raises ConfigError for fewer layers than it was recorded with, and for a part of a period.
        """
        least = self.layers - self.period
        if layers < least:
            raise ConfigError(f"{layers} layers: no law for fewer than {least}")
        copies, rest = divmod(layers - least, self.period)
        if rest:
            raise ConfigError(f"{layers} layers: the law is for a multiple of {self.period}")
        is_request = self.kind == REQUEST
        size = np.array([formula.at(variables) for formula in self.formulas], dtype=np.int64)
        value = self.number.copy()
        value[is_request] = size[self.number[is_request]]
        is_free = self.kind == FREE
        repeated = Repeated(
            is_request,
            is_free,
            is_free,
            self.kin,
            value,
            self.by_copy,
            self.by_copies,
            self.parts,
        )
        row, value = repeated.rows_with(copies)
        return Rows(row, self.kind[row], self.kin[row], value)


def requests_of(
    stretches: Sequence[Rows],
    names: Sequence[str],
    reset: int,
    layers: int,
    cuts: tuple[int, ...] = (),
) -> Requests:
    """The program that rows are, stretch after stretch.

    names: by stretch; those of one name have the same rows but for the bytes of requests.
    reset, cuts: the reset and the stretches of `Requests`.
    Raises ConfigError where parts follow no law.
    """
    alive, links, blocks = Alive(), dict[str, Links](), list[NDArray[np.int64]]()
    for name, rows in zip(names, stretches, strict=True):
        if name not in links:
            is_request, is_free = rows.kind == REQUEST, rows.kind == FREE
            links[name] = links_of(is_request, is_free, rows.kin, rows.value)
        try:
            blocks.append(alive.blocks(links[name]))
        except LookupError:
            raise ConfigError(f"{layers} layers: no law says which block is freed") from None
    kind, kin, value = (
        np.concatenate([getattr(rows, column) for rows in stretches])
        for column in ("kind", "kin", "value")
    )
    return Requests(
        kind=kind,
        block=np.concatenate(blocks),
        size=np.where(kind == REQUEST, value, 0),
        stack=np.where(kind == REQUEST, kin, -1),
        reset=reset,
        stretches=cuts,
    )
