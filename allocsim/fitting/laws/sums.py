"""Temporary memory of PyTorch's reduction kernels, which split a long sum into partial sums.

A sum that is too long for one pass is split into the fewest partial sums that fill the GPU.
"""

# Sources: PyTorch's reductions and torch.optim.Adafactor as they ran; each threshold was found by
# bisection between the two sizes given with it.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Final


@dataclass(frozen=True, slots=True)
class Card:
    """Properties of a GPU that determine how many thread blocks run at a time.

    capability: compute capability.
    threads: maximum number of resident threads of a multiprocessor.
    """

    capability: tuple[int, int]
    multiprocessors: int
    threads: int

    def blocks(self, threads: int) -> int:
        """Return the number of thread blocks, each of `threads` threads, that fill the GPU."""
        return self.multiprocessors * (self.threads // threads)


IN_TWO_PASSES_ABOVE: Final = 1020
"""Maximum number of rows of a matrix that one pass sums over its rows; 1,021 rows took two."""

AT_ONCE: Final = 130_560
"""Maximum elements that one thread block sums, 255 per thread; 130,561 took several blocks."""

INDEXED: Final = (1 << 31) - 1
"""Maximum bytes of a tensor that one kernel sums; PyTorch sums a larger tensor in parts."""


def columns_of_a_block(rows: int) -> int:
    return 512 // rows


def partial_sums(summed: int, columns: int, card: Card, rows: int) -> int:
    """Return the number of partial sums for each column of a matrix that is summed over its rows.

    summed, columns: number of rows and of columns of the matrix.
    rows: number of rows of threads in a thread block; a row has 32 threads.
    """
    return max(
        min(-(-summed // (16 * rows)), sums_that_fill_gpu(columns, card, rows)),
        -(-summed // (256 * rows)),
    )


def sums_that_fill_gpu(columns: int, card: Card, rows: int) -> int:
    return -(-card.blocks(32 * rows) // max(-(-columns // columns_of_a_block(rows)), 1))


def parts_of(numbers: int, blocks: int) -> int:
    values = -(-numbers // 512)
    return max(min(blocks, -(-values // 16)), -(-values // 256))


MATRICES = {
    "queries": (("heads", "head_dim"), ("hidden",)),
    "keys": (("kv_heads", "head_dim"), ("hidden",)),
    "attended": (("hidden",), ("heads", "head_dim")),
    "joined": (("hidden",), ("three", "hidden")),
    "gate": (("intermediate",), ("hidden",)),
    "down": (("hidden",), ("intermediate",)),
    "embedding": (("vocabulary",), ("hidden",)),
    "places": (("positions",), ("hidden",)),
}
"""Shape (rows, columns) of each kind of matrix in a language model; both are products of sizes.

GPT-2 has one matrix for queries, keys and values ("joined"), and learned positions ("places").
"""
_WITH_LEARNED_POSITIONS = ("joined", "places")

FACTORED = (
    *(f"{name}_column_storage" for name in MATRICES),
    *(f"{name}_parts" for name in MATRICES),
    "row_parts",
)
"""Names of the variables for partial sums, which only the formulas for Adafactor have.

A variable is 0 if PyTorch computes the sum in one pass."""

_THREADS = 512
"""Threads in a thread block if each thread sums one column; there are fewer if it sums several."""


def factored_variables(sizes: Mapping[str, int], card: Card) -> dict[str, int]:
    """Return the numbers of partial sums in Adafactor, which formulas for its requests contain.

    PyTorch computes a large sum as partial sums in temporary memory.  For each matrix of the model,
    the result has their number and the size of this memory, keyed by names such as "gate_parts" and
    "gate_column_storage" (`FACTORED`).

    sizes: dimensions of the model, keyed by names such as "hidden".
    card: GPU, whose multiprocessors decide the number of partial sums.
    """
    found = {}
    for name in MATRICES:
        rows, columns = _shape(name, sizes)
        storage = 4 * columns * columns_of_a_block(4) * partial_sums(rows, columns, card, 4)
        found[f"{name}_column_storage"] = storage if rows > IN_TWO_PASSES_ABOVE else 0
        found[f"{name}_parts"] = _parts(rows * columns, card)
    return found | {"row_parts": _parts(sizes["vocabulary"], card)}


def factored_way(sizes: Mapping[str, int]) -> str:
    """Return a name for the kernels with which Adafactor sums the matrices of a model.

    Models for which the same kernels run have the same name.

    sizes: sizes of the model by name, and as "factored" the bytes of a parameter's element.
    """
    known = {"positions": 0, **sizes}
    names = [name for name in MATRICES if known["positions"] or name not in _WITH_LEARNED_POSITIONS]
    shapes = {name: _shape(name, known) for name in names}
    tall = [name for name, (rows, _) in shapes.items() if rows > IN_TWO_PASSES_ABOVE]
    small = [name for name, (rows, columns) in shapes.items() if rows * columns <= AT_ONCE]
    way = ["-".join(("tall", *tall))] + ["-".join(("small", *small))] * bool(small)
    way += ["rows"] * (sizes["vocabulary"] > AT_ONCE)
    is_odd = any(columns % 4 for _, columns in shapes.values())
    most = max(rows * columns for rows, columns in shapes.values())
    way += ["odd"] * is_odd + ["parts"] * (most * sizes["factored"] > INDEXED)
    return ".".join(way)


def _shape(name: str, sizes: Mapping[str, int]) -> tuple[int, int]:
    known = {**sizes, "three": 3}
    rows, columns = (prod(known[each] for each in of) for of in MATRICES[name])
    return rows, columns


def in_two_passes(rows: int, columns: int, card: Card, copies: int = 1) -> tuple[int, int]:
    """Return (bytes of partial sums, number of thread blocks along columns) of `matrix.sum(dim=0)`.

    Both numbers are 0 if PyTorch needs only one pass.

    rows, columns: shape of the matrix, which has elements of 4 bytes.
    copies: number of matrices in one tensor, summed at once.
    """
    if not columns:
        return 0, 0
    at_a_time = next(count for count in (4, 2, 1) if columns % count == 0)
    threads = _THREADS // at_a_time
    width = min(1 << (columns // at_a_time).bit_length() - 1, 32)
    values = -(-rows // (threads // width))
    if values <= IN_TWO_PASSES_ABOVE // 4:
        return 0, 0
    blocks = -(-copies * columns // (width * at_a_time))
    filled = -(-card.blocks(threads) // blocks)
    sums = max(min(-(-values // 16), filled), -(-values // 256))
    return 4 * copies * columns * sums * width * at_a_time, blocks


def _parts(numbers: int, card: Card) -> int:
    return 0 if numbers <= AT_ONCE else parts_of(numbers, card.blocks(512))
