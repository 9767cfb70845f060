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
from allocsim.laws.repeated import Repeated

__all__ = ["EMPTY_CACHE", "FREE", "REQUEST", "Law", "Requests"]

REQUEST, FREE, EMPTY_CACHE = 0, 1, 2
"""What a row does."""


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """A program at some sizes; row i is its row i.

    kind: REQUEST, FREE or EMPTY_CACHE.  block: the number of the block, by request.  size: bytes of
    a request, 0 in other rows.  stack: of a request, its stack's number; -1 in other rows.
    reset: the row at which the peaks are reset; -1 if they never are.
    """

    kind: NDArray[np.uint8]
    block: NDArray[np.int64]
    size: NDArray[np.int64]
    stack: NDArray[np.int64]
    reset: int

    def with_the_making(self) -> Requests:
        """The same program where nothing that the making of the model left is given back, and its
        peaks count: both follow the making, and neither is a request."""
        kept = self.kind != EMPTY_CACHE
        return Requests(
            self.kind[kept], self.block[kept], self.size[kept], self.stack[kept], reset=-1
        )


@dataclass(frozen=True, slots=True, eq=False)
class Law:
    """A program with one copy of each part, of `layers` layers; each column has a row for each.

    kind: what the row does.  kin: of a request, its stack's number; of a free, its block's.
    number: of a request, which of `formulas` its bytes are; of a free, how many younger blocks of
    its kin there are.  by_copy, by_copies: how that number of a free, and the bytes of a request,
    grow with each copy and with the number of copies.
    parts: see `Repeated`.  reset: the row at which the peaks are reset.
    proofs: recordings that came out row by row and were not used for the formulas.
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

    def requests(self, variables: Mapping[str, int], layers: int) -> Requests:
        """The program at these variables.

        Raises ConfigError for fewer layers than it was recorded with, or where parts follow no law.
        """
        least = self.layers - 1
        if layers < least:
            raise ConfigError(f"{layers} layers: no law for fewer than {least}")
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
        try:
            made = repeated.with_copies(layers - least)
        except LookupError:
            raise ConfigError(f"{layers} layers: no law says which block is freed") from None
        asks = is_request[made.row]
        reset = int(np.flatnonzero(made.row == self.reset)[0])
        return Requests(
            kind=self.kind[made.row],
            block=made.block,
            size=np.where(asks, made.value, 0),
            stack=np.where(asks, self.kin[made.row], -1),
            reset=reset,
        )
