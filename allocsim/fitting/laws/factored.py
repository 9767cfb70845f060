"""Memory that Adafactor requests for sums over each matrix: per column, and over all elements.

Rule: Adafactor keeps a value for each row and column of a gradient, and computes the norms of
    parameters and updates. A sum in two passes stores the results of the first pass. The matrix
    determines the number of passes, so the number of passes is part of the regime.

Sources: torch.optim.Adafactor as it ran, and the kernels of other sums (`variables.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from allocsim.fitting.laws.card import Card
from allocsim.fitting.laws.sums import AT_ONCE, IN_TWO_PASSES_ABOVE, INDEXED, partial_sums, parts_of

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
"""Rows and columns of a language model's matrices.

GPT-2 has one matrix for queries, keys and values, and learned positions ("places").
"""
_WITH_LEARNED_POSITIONS = ("joined", "places")

FACTORED = (
    *(f"{name}_column_storage" for name in _MATRICES),
    *(f"{name}_parts" for name in _MATRICES),
    "row_parts",
)
"""Names of the variables; a variable is 0 if one pass suffices for its sum."""

_STORED = 512
"""Bytes of a column's partial sum."""
_AT_A_TIME = 4
"""Number of columns that a thread sums, with four rows of threads in a block.

Matrices whose number of columns is not a multiple of it are in another regime.
"""


def factored_variables(sizes: Mapping[str, int], card: Card) -> dict[str, int]:
    """Return the value of each variable in `FACTORED`.

    sizes: sizes of the model, by name.
    """
    found = {}
    for name in _MATRICES:
        rows, columns = _shape(name, sizes)
        found[f"{name}_column_storage"] = _column_storage(rows, columns, card)
        found[f"{name}_parts"] = _parts(rows * columns, card)
    return found | {"row_parts": _parts(sizes["vocabulary"], card)}


def factored_way(sizes: Mapping[str, int]) -> str:
    """Return the part of a regime's name that describes Adafactor's sums.

    It lists the matrices whose columns are summed in two passes and those that are small enough for
    one block. It also says whether an embedding has too many rows for one block, whether a number
    of columns is not a multiple of four, and whether a matrix is summed in parts.

    sizes: sizes of the model by name, and as `factored` the bytes of a parameter's element.
    """
    known = {"positions": 0, **sizes}
    names = [
        name for name in _MATRICES if known["positions"] or name not in _WITH_LEARNED_POSITIONS
    ]
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
