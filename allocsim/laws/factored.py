"""The memory that Adafactor's sums over a matrix request: those of its columns, and of all of it.

Rule: Adafactor keeps a number for each row and each column of a gradient, and takes the norms of
parameter and update.  A sum that takes two passes stores what the first left; whether it does
depends on the matrix, so the choice is part of the regime.

Sources: torch.optim.Adafactor as it ran, beside the kernels' other sums (`variables.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from allocsim.laws.card import Card
from allocsim.laws.sums import AT_ONCE, IN_TWO_PASSES_ABOVE, INDEXED, partial_sums, parts_of

__all__ = ["FACTORED", "factored_variables", "factored_way"]

_MATRICES = {
    "queries": (("heads", "head_dim"), ("hidden",)),
    "keys": (("kv_heads", "head_dim"), ("hidden",)),
    "attended": (("hidden",), ("heads", "head_dim")),
    "joined": (("hidden",), ("three", "hidden")),
    "gate": (("intermediate",), ("hidden",)),
    "down": (("hidden",), ("intermediate",)),
    "embedding": (("vocabulary",), ("hidden",)),
    "places": (("positions",), ("hidden",)),
}
"""Rows and columns of the matrices of a language model; GPT-2 joins queries, keys and values, and
learns places."""
_OF_LEARNED_PLACES = ("joined", "places")

FACTORED = (
    *(f"{name}_column_storage" for name in _MATRICES),
    *(f"{name}_parts" for name in _MATRICES),
    "row_parts",
)
"""The variables, 0 where one pass suffices."""

_STORED = 512
"""Bytes of a column's partial sum."""
_AT_A_TIME = 4
"""Columns that a thread sums, with four rows of threads in a block; of a number that they do not
divide the ways are others."""


def factored_variables(sizes: Mapping[str, int], card: Card) -> dict[str, int]:
    """By name, what the sums store."""
    found = {}
    for name in _MATRICES:
        rows, columns = _shape(name, sizes)
        found[f"{name}_column_storage"] = _column_storage(rows, columns, card)
        found[f"{name}_parts"] = _parts(rows * columns, card)
    return found | {"row_parts": _parts(sizes["vocabulary"], card)}


def factored_way(sizes: Mapping[str, int]) -> str:
    """Which matrices' columns are summed in two passes, which are small enough for one block,
    whether the rows of an embedding are too many for one, columns that four do not divide, and
    whether a matrix is taken in parts.  `factored` is the bytes of a number."""
    known = {"positions": 0, **sizes}
    names = [name for name in _MATRICES if known["positions"] or name not in _OF_LEARNED_PLACES]
    shapes = {name: _shape(name, known) for name in names}
    tall = [name for name, (rows, _) in shapes.items() if rows > IN_TWO_PASSES_ABOVE]
    small = [name for name, (rows, columns) in shapes.items() if rows * columns <= AT_ONCE]
    way = ["-".join(("tall", *tall))] + ["-".join(("small", *small))] * bool(small)
    way += ["rows"] * (sizes["vocabulary"] > AT_ONCE)
    is_odd = any(columns % _AT_A_TIME for _, columns in shapes.values())
    most = max(rows * columns for rows, columns in shapes.values())
    way += ["odd"] * is_odd + ["parts"] * (most * sizes["factored"] > INDEXED)
    return ".".join(way)


def _shape(name: str, sizes: Mapping[str, int]) -> tuple[int, int]:
    known = {**sizes, "three": 3}
    rows, columns = (prod(known[each] for each in of) for of in _MATRICES[name])
    return rows, columns


def _column_storage(rows: int, columns: int, card: Card) -> int:
    if rows <= IN_TWO_PASSES_ABOVE or not columns:
        return 0
    return _STORED * columns * partial_sums(rows, columns, card, _AT_A_TIME)


def _parts(numbers: int, card: Card) -> int:
    return 0 if numbers <= AT_ONCE else parts_of(numbers, card.blocks(512))
