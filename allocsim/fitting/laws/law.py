"""Law of a part of a program, such as the optimizer's step: formulas for its allocator requests.

A law has a formula for the bytes of each request, and supports any number of layers.  It is valid
only for sizes, such as batch sizes, at which PyTorch runs the same kernels, so the order of
requests and frees is fixed.  For other sizes there is another law, or none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from allocsim.errors import ConfigError
from allocsim.fitting.laws.repeated import Alive, Links, Repeated, links_of
from allocsim.fitting.laws.variables import VARIABLES


@dataclass(frozen=True, slots=True)
class Formula:
    """Bytes of a request: numerator / denominator times a product of variables, such as batch.

    variables: indices into `VARIABLES`, one for each factor; an index occurs twice for a square.
    """

    numerator: int
    denominator: int
    variables: tuple[int, ...]

    def at(self, values: Mapping[str, int]) -> int:
        """Return the bytes of the request, rounded up.

        values: a number for each name in `VARIABLES`.
        """
        product = self.numerator
        for number in self.variables:
            product *= values[VARIABLES[number]]
        return -(-product // self.denominator)

    @classmethod
    def parsed(cls, text: str) -> Formula:
        """Parse a formula, such as "2 * batch * length * hidden"."""
        product, _, denominator = text.partition(" / ")
        numerator, *names = product.split(" * ")
        return cls(int(numerator), int(denominator or 1), tuple(map(VARIABLES.index, names)))

    @property
    def text(self) -> str:
        share = f" / {self.denominator}" if self.denominator != 1 else ""
        names: Sequence[str] = [VARIABLES[number] for number in self.variables]
        return " * ".join((str(self.numerator), *names)) + share


REQUEST, FREE, EMPTY_CACHE = 0, 1, 2
"""Kinds of rows in a law; a row is one allocator call: a request, a free or empty_cache()."""


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """Requests and frees of a program at given sizes, as columns with one element per call.

    kind: REQUEST, FREE or EMPTY_CACHE.
    block: index of the block that is requested or freed, counted in the order of the requests.
    size: bytes of a request, else 0.
    stack: index of the Python stack of a request, else -1.
    reset: index of the call before which the program resets PyTorch's peak counters, -1 if never.
    stretches: indices of the calls at which training steps or generated tokens begin, then the
        number of all calls; empty if unknown.
    """

    kind: NDArray[np.uint8]
    block: NDArray[np.int64]
    size: NDArray[np.int64]
    stack: NDArray[np.int32]
    reset: int
    stretches: tuple[int, ...] = ()

    def has_calls_of(self, other: Requests) -> bool:
        """Return True if the calls of `other` are the same, with the same bytes."""
        names = ("kind", "block", "size")
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in names)

    @property
    def most_in_use(self) -> int:
        """Most bytes in use at one time, with each request rounded up to a multiple of 512."""
        rounded = (self.size + 511) & -512
        of_block = rounded[self.kind == REQUEST]
        change = np.where(self.kind == FREE, -of_block[self.block], rounded)
        return int(np.cumsum(change).max())

    def without_reset(self) -> Requests:
        """Return a copy without calls of empty_cache() and without the reset of peak counters."""
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
class LawRows:
    """Requests and frees of a part of a program, computed by its law, as columns.

    Each array has one element per call.
    """

    # Index of the row in the law, which has the rows of repeated layers only once.
    row: NDArray[np.int64]
    kind: NDArray[np.uint8]
    # Index of the Python stack that requested the block.
    group: NDArray[np.int64]
    # Bytes of a request; for a free, the number of allocated blocks of the group that were
    # requested after the freed block, which identifies it.
    value: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Law:
    """Requests and frees of a part of a program, such as the optimizer's step, as formulas.

    Calls that repeat for each layer, such as those of a layer's forward pass, are stored once. Each
    array has one element per call.
    """

    # Each array has one element per row: REQUEST, FREE or EMPTY_CACHE.
    kind: NDArray[np.uint8]
    # Index of the Python stack that requested the row's block.
    group: NDArray[np.int64]
    # For a request, the index of its formula; for a free, the number of allocated blocks of the
    # group that were requested after the freed block, which identifies it.
    number: NDArray[np.int64]
    # In a model with more layers, each of `parts` occurs `copies` times, and by_copy * copy +
    # by_copies * (copies - 1) is added to the number of a free and to the bytes of a request;
    # `copy` counts from 0, and is 0 outside the parts.
    by_copy: NDArray[np.int64]
    by_copies: NDArray[np.int64]
    # First row of each repeated range, and the row after its last.
    parts: Sequence[tuple[int, int]]
    formulas: tuple[Formula, ...]
    # Number of layers of a model for which every range occurs once.
    layers: int
    # Number of layers in one copy, more than 1 if different layers alternate.
    period: int = 1

    def n_rows(self, layers: int) -> int:
        more = sum(stop - start for start, stop in self.parts)
        return len(self.kind) + more * ((layers - self.layers) // self.period)

    def rows(self, variables: Mapping[str, int], layers: int) -> LawRows:
        """Compute the requests and frees for a model of `layers` layers.

        variables: value of each name in `VARIABLES`, such as the batch size.
        """
        least = self.layers - self.period
        if layers < least:
            raise ConfigError(f"{layers} layers: no law for fewer than {least}")
        copies, rest = divmod(layers - least, self.period)
        if rest:
            raise ConfigError(f"{layers} layers: the law is for a multiple of {self.period}")
        size = np.array([formula.at(variables) for formula in self.formulas], dtype=np.int64)
        known = _with_copies(self, copies)
        value = known.value.copy()
        value[known.requests] += size[known.formula]
        return LawRows(known.row, known.kind, known.group, value)


@dataclass(frozen=True, slots=True, eq=False)
class _Copies:
    """Allocator calls of a law, with those of every layer, before the formulas are evaluated.

    row, kind, group: as in `LawRows`.
    value: as in `LawRows`, without the bytes that formulas give.
    requests: indices of the calls that are requests.
    formula: for each request, the index of its formula.
    """

    row: NDArray[np.int64]
    kind: NDArray[np.uint8]
    group: NDArray[np.int64]
    value: NDArray[np.int64]
    requests: NDArray[np.intp]
    formula: NDArray[np.int64]


@lru_cache(maxsize=32)
def _with_copies(law: Law, copies: int) -> _Copies:
    # These are the same on all cards and at all sizes with the same number of layers.
    is_request, is_free = law.kind == REQUEST, law.kind == FREE
    repeated = Repeated(
        is_request,
        is_free,
        is_free,
        law.group,
        np.where(is_request, 0, law.number),
        law.by_copy,
        law.by_copies,
        law.parts,
    )
    # Blocks are resolved once for the whole program, in `requests_of`.
    row, value = repeated.rows_with(copies)
    requests = np.flatnonzero(is_request[row])
    return _Copies(row, law.kind[row], law.group[row], value, requests, law.number[row[requests]])


@lru_cache(maxsize=32)
def _links(kind: bytes, group: bytes, number: bytes) -> Links:
    # A part has the same links on all cards and at all sizes with the same number of layers.
    kinds = np.frombuffer(kind, dtype=np.uint8)
    columns = (np.frombuffer(each, dtype=np.int64) for each in (group, number))
    return links_of(kinds == REQUEST, kinds == FREE, *columns)


def requests_of(
    parts: Sequence[LawRows],
    names: Sequence[str],
    reset: int,
    layers: int,
    stretches: tuple[int, ...] = (),
) -> Requests:
    """Join the parts of a program, such as its training steps, into its requests and frees.

    Raises ConfigError if a part frees a block that does not exist.

    parts: calls of each part, in the order of the program.
    names: name of each part; parts of the same name differ only in the bytes of requests.
    reset, stretches: fields of the resulting `Requests`.
    layers: number of the model's layers, for the error message.
    """
    alive, links, blocks = Alive(), dict[str, Links](), list[NDArray[np.int64]]()
    for name, rows in zip(names, parts, strict=True):
        if name not in links:
            number = np.where(rows.kind == FREE, rows.value, 0)
            columns = (rows.kind, rows.group, number)
            links[name] = _links(*(column.tobytes() for column in columns))
        try:
            blocks.append(alive.blocks(links[name]))
        except LookupError:
            raise ConfigError(
                f"{layers} layers: the law frees a block that does not exist"
            ) from None
    sizes = (np.where(rows.kind == REQUEST, rows.value, 0) for rows in parts)
    stacks = (np.where(rows.kind == REQUEST, rows.group, -1) for rows in parts)
    return Requests(
        kind=np.concatenate([rows.kind for rows in parts]),
        block=np.concatenate(blocks),
        size=np.concatenate([*sizes]),
        stack=np.concatenate([*stacks], dtype=np.int32),
        reset=reset,
        stretches=stretches,
    )
