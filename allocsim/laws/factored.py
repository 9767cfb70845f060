"""What Adafactor's sums of a matrix request: those of its columns, and of all of it.

Rule: it keeps a number for each row and each column of a gradient, and takes the norms of parameter
and update.  A sum that one pass cannot make stores what the first left; whether it does hangs on
the matrix, so its ways are part of the regime.

Sources: torch.optim.Adafactor as it ran, beside the kernels' other sums (`variables.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

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

_IN_TWO_PASSES_ABOVE = 1020
"""Rows (1,020 | 1,021) from which on columns are summed in two passes."""
_AT_ONCE = 130_560
"""Numbers (130,560 | 130,561) up to which one block sums them all."""
_INDEXED = (1 << 31) - 1
"""Bytes of a matrix up to which one kernel sums it; a larger one is taken in parts."""
_STORED = 512
"""Bytes of a column's partial sum."""
_AT_A_TIME = 4
"""Columns that a thread sums; of a number that they do not divide the ways are others."""


def factored_variables(sizes: Mapping[str, int], narrow: int, wide: int) -> dict[str, int]:
    """By name, what the sums store.

    narrow, wide: how many blocks of 128 threads and of 512 fill the card.
    """
    found = {}
    for name in _MATRICES:
        rows, columns = _shape(name, sizes)
        found[f"{name}_column_storage"] = _column_storage(rows, columns, narrow)
        found[f"{name}_parts"] = _parts(rows * columns, wide)
    return found | {"row_parts": _parts(sizes["vocabulary"], wide)}


def factored_way(sizes: Mapping[str, int]) -> str:
    """Which matrices' columns are summed in two passes, which are small enough for one block,
    whether the rows of an embedding are too many for one, columns that four do not divide, and
    whether a matrix is taken in parts.  `factored` is the bytes of a number."""
    known = {"positions": 0, **sizes}
    names = [name for name in _MATRICES if known["positions"] or name not in _OF_LEARNED_PLACES]
    shapes = {name: _shape(name, known) for name in names}
    tall = [name for name, (rows, _) in shapes.items() if rows > _IN_TWO_PASSES_ABOVE]
    small = [name for name, (rows, columns) in shapes.items() if rows * columns <= _AT_ONCE]
    way = ["-".join(("tall", *tall))] + ["-".join(("small", *small))] * bool(small)
    way += ["rows"] * (sizes["vocabulary"] > _AT_ONCE)
    is_odd = any(columns % _AT_A_TIME for _, columns in shapes.values())
    most = max(rows * columns for rows, columns in shapes.values())
    way += ["odd"] * is_odd + ["parts"] * (most * sizes["factored"] > _INDEXED)
    return ".".join(way)


def _shape(name: str, sizes: Mapping[str, int]) -> tuple[int, int]:
    known = {**sizes, "three": 3}
    rows, columns = (prod(known[each] for each in of) for of in _MATRICES[name])
    return rows, columns


def _column_storage(rows: int, columns: int, blocks: int) -> int:
    """64 rows for each partial sum, or more where fewer fill the card; 1,024 at most."""
    if rows <= _IN_TWO_PASSES_ABOVE or not columns:
        return 0
    sums = max(min(-(-rows // 64), -(-blocks // -(-columns // 128))), -(-rows // 1024))
    return _STORED * columns * sums


def _parts(numbers: int, blocks: int) -> int:
    """Blocks of 512 threads that sum so many numbers, of 16 a thread or more, of 256 or fewer."""
    if numbers <= _AT_ONCE:
        return 0
    values = -(-numbers // 512)
    return max(min(blocks, -(-values // 16)), -(-values // 256))
