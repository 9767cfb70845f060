"""What the bytes of a request are a product of: the sizes of a model at work, and what kernels make
of them.

Rule: a variable is a whole number that the sizes and the card tell, and every rounding up that a
kernel does is a variable of its own; so a request is a monomial in variables, or has no law.
The regime says which way through the kernels is taken: requests of two regimes have other orders.

Sources: PyTorch and FlashAttention-2 as they ran; each threshold was found by halving, between the
two sizes named beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

__all__ = ["COLUMNS", "SIZES", "VARIABLES", "Card", "attention_splits", "regime_of", "variables_of"]

Sizes = Mapping[str, int]

SIZES = (
    *("hidden", "intermediate", "heads", "kv_heads", "head_dim", "vocabulary"),
    *("batch", "length", "lora", "positions", "experts", "chosen", "patch"),
)
"""The sizes that a request may hang on; `layers` says how often parts come.

length: tokens of a sequence, an image's class among them.  patch: pixels of a patch's side.
"""

COLUMNS = {
    "hidden": (1, ("hidden",)),
    "three_hidden": (3, ("hidden",)),
    "intermediate": (1, ("intermediate",)),
    "queries": (1, ("heads", "head_dim")),
    "keys": (1, ("kv_heads", "head_dim")),
    "vocabulary": (1, ("vocabulary",)),
}
"""How wide the tensors are whose columns are summed over the tokens: a number times sizes."""

VARIABLES = (
    *SIZES,
    "workspace",
    *("length_and_one", "length_less_one", "queries_keys_values"),
    *(f"length_by_{unit}" for unit in (8, 16, 32, 128)),
    *("splits", "gradient_workspace", "gradient_workspace_16_bit"),
    *("touched_rows", "partial_segments", "sort_storage"),
    *("scan_storage", "rows_scan_storage"),
    *("types_segments", "types_sort_storage", "choices_sort_storage"),
    *(f"{columns}_by_128" for columns in COLUMNS),
    *(f"{columns}_partial_sums" for columns in COLUMNS),
)
"""By number, as formulas name them."""

_SORTED_ABOVE = 3072
"""Tokens (3,072 | 3,073) from which on the gradient of an embedding sorts its indices."""

_IN_TWO_PASSES_ABOVE = 1020
"""Tokens (1,020 | 1,021) from which on a sum over them is made in two passes."""

_SORTED_BY_ONE_BLOCK = 2304
"""Indices (2,304 | 2,305) up to which a radix sort has no temporary storage."""

_TYPES = 2
"""Of BERT's tokens."""

_INDEXED = (1 << 31) - 1
"""Bytes of a 16-bit tensor up to which one kernel sums it; a larger one is taken in parts."""

_WORKSPACE = 8_519_680
_WORKSPACE_SINCE_HOPPER = 32 << 20
_HOPPER = 9


@dataclass(frozen=True, slots=True)
class Card:
    """What of a card decides sizes.

    multiprocessors; threads: that one of them holds.
    """

    capability: tuple[int, int]
    multiprocessors: int
    threads: int


def variables_of(sizes: Sizes, card: Card) -> dict[str, int]:
    """By name, every variable; a size that the family has not is 0."""
    known = {name: sizes.get(name, 0) for name in SIZES}
    length, tokens = sizes["length"], sizes["batch"] * sizes["length"]
    is_hopper = card.capability[0] >= _HOPPER
    found = {
        **known,
        "workspace": _WORKSPACE_SINCE_HOPPER if is_hopper else _WORKSPACE,
        "length_and_one": length + 1,
        "length_less_one": length - 1,
        "queries_keys_values": (known["heads"] + 2 * known["kv_heads"]) * known["head_dim"],
        **{f"length_by_{unit}": -(-length // unit) * unit for unit in (8, 16, 32, 128)},
        "splits": attention_splits(known, card.multiprocessors),
        "gradient_workspace": _gradient_workspace(length, known["head_dim"], is_fp32=True),
        "gradient_workspace_16_bit": _gradient_workspace(length, known["head_dim"], is_fp32=False),
        **_sorted(tokens, known["vocabulary"]),
        "types_segments": tokens // 10 + _TYPES,
        "types_sort_storage": _sort_storage(tokens, _TYPES),
        "choices_sort_storage": _sort_storage(tokens * known["chosen"], tokens),
    }
    for name, (factor, width) in COLUMNS.items():
        columns = factor * prod(known[size] for size in width)
        found[f"{name}_by_128"] = -(-columns // 128)
        found[f"{name}_partial_sums"] = _partial_sums(tokens, columns, card)
    return found


def _partial_sums(tokens: int, columns: int, card: Card) -> int:
    """Into how many sums a sum over tokens is taken apart first.

    64 tokens each, or more where fewer sums fill the card with blocks of 128 threads, a column a
    thread; 1,024 tokens at most.
    """
    blocks = card.multiprocessors * (card.threads // 128)
    fills = -(-blocks // max(-(-columns // 128), 1))
    return max(min(-(-tokens // 64), fills), -(-tokens // 1024))


def _gradient_workspace(length: int, head_dim: int, *, is_fp32: bool) -> int:
    """What the backward of memory-efficient attention takes for a head of a sequence.

    For each block of keys, its gradient in fp32 and counters.
    """
    block = 64 if head_dim <= 64 else 128
    width = -(-head_dim // block) * block
    return -(-length // block) * (4 * block * width + (block // 4 if is_fp32 else 16))


def _sorted(tokens: int, vocabulary: int) -> dict[str, int]:
    """What the gradient of an embedding takes to sort its indices.

    rows: of the embedding, at most; segments of ten indices; the temporary storage of a radix sort,
    and those of scans over tokens and rows, 256 bytes for each 16 tiles.
    """
    rows = min(tokens, vocabulary)
    return {
        "touched_rows": rows,
        "partial_segments": tokens // 10 + rows,
        "sort_storage": _sort_storage(tokens, vocabulary),
        "scan_storage": 256 * (4 + -(-tokens // 21504)) - 1,
        "rows_scan_storage": 256 * (4 + -(-rows // 14336)) - 1,
    }


def _sort_storage(count: int, values: int) -> int:
    """The temporary storage of a radix sort of `count` indices below `values`.

    Tables of 1,024 bytes for each tile of 3,840 and 2,048 for each digit of 8 bits, and from the
    second digit on two arrays of 8 bytes an index; a byte where one block sorts them all.
    """
    if count <= _SORTED_BY_ONE_BLOCK:
        return 1
    digits = -(-max(values - 1, 1).bit_length() // 8)
    arrays = 2 * -(-count // 32) if digits > 1 else 0
    return 256 * (arrays + 2 + 8 * digits + 4 * -(-count // 3840)) - 1


def regime_of(sizes: Sizes, card: Card, mask_unit: int = 0) -> str:
    """The way through the kernels: batch, tokens, heads, splits of attention, its mask, a window.

    And of a vocabulary with biases, whether four columns are summed at a time, and in parts.

    mask_unit: numbers of a mask that its rows are padded to; 0 without one.  With one no flash
    attention runs.
    """
    tokens = sizes["batch"] * sizes["length"]
    heads, kv_heads = sizes["heads"], sizes.get("kv_heads", sizes["heads"])
    shared = "one" if kv_heads == 1 else "own" if kv_heads == heads else "shared"
    if sizes.get("positions") and sizes["length"] > _SORTED_ABOVE:
        many = "long"  # the gradient of the positions is sorted, too
    elif sizes.get("patch") and sizes["batch"] > _IN_TWO_PASSES_ABOVE:
        many = "crowd"  # what is summed over images is, in two passes
    elif tokens > _SORTED_ABOVE:
        many = "sorted"
    else:
        many = "two" if tokens > _IN_TWO_PASSES_ABOVE else "few"
    if mask_unit:
        attention = "padded" if sizes["length"] % mask_unit else "masked"
    else:
        splits = attention_splits(sizes, card.multiprocessors)
        attention = "split" if splits > 1 else "whole"
    parts = ["single" if sizes["batch"] == 1 else "several", many, shared, attention]
    parts += ["window"] * bool(sizes.get("window"))
    if sizes.get("output_bias") and tokens > _IN_TWO_PASSES_ABOVE:
        parts.append("fours" if sizes["vocabulary"] % 4 == 0 else "uneven")
        parts += ["parts"] * (2 * tokens * sizes["vocabulary"] > _INDEXED)
    return ".".join(parts)


def attention_splits(sizes: Sizes, multiprocessors: int) -> int:
    """Into how many parts FlashAttention-2 takes the keys, so that a small job fills the card.

    It wants blocks for four fifths of the places, two on each multiprocessor; else it takes the
    fewest parts that fill them 0.85 times as well as the best number does.  Source:
    flash-attention's split-key heuristic, blocks of 64 queries and 64, 128 or 256 keys by the size
    of a head.
    """
    places = 2 * multiprocessors
    head_dim, length = sizes["head_dim"], sizes["length"]
    block = 256 if head_dim <= 64 else 128 if head_dim <= 128 else 64
    key_blocks = -(-length // block)
    jobs = sizes["batch"] * sizes["heads"] * -(-length // 64)
    if jobs >= 0.8 * places:
        return 1
    filled = {}
    for splits in range(1, min(128, places, key_blocks) + 1):
        if splits == 1 or -(-key_blocks // splits) != -(-key_blocks // (splits - 1)):
            waves = jobs * splits / places
            filled[splits] = waves / -(-jobs * splits // places)
    best = max(filled.values())
    return min(splits for splits, share in filled.items() if share >= 0.85 * best)
