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
from math import prod

from allocsim.laws.card import Card
from allocsim.laws.factored import FACTORED, factored_variables, factored_way
from allocsim.laws.sums import (
    AT_ONCE,
    IN_TWO_PASSES_ABOVE,
    INDEXED,
    columns_of_a_block,
    filling,
    partial_sums,
    parts_of,
)

__all__ = [
    "COLUMNS", "SIZES", "VARIABLES", "Sizes", "attention_splits", "prompt_regime",
    "regime_of", "step_regime", "variables_of",
]  # fmt: skip

Sizes = Mapping[str, int]

SIZES = (
    *("hidden", "intermediate", "heads", "kv_heads", "head_dim", "vocabulary"),
    *("batch", "length", "lora", "positions", "experts", "chosen", "patch"),
)
"""The sizes that a request may depend on; `layers` says how often parts come.

length: tokens of a sequence, an image's class among them.  patch: pixels of a patch's side.
"""

COLUMNS = {
    "hidden": (1, ("hidden",)),
    "three_hidden": (3, ("hidden",)),
    "intermediate": (1, ("intermediate",)),
    "queries": (1, ("heads", "head_dim")),
    "keys": (1, ("kv_heads", "head_dim")),
    "vocabulary": (1, ("vocabulary",)),
    "vocabulary_in_twos": (1, ("vocabulary",)),
    "vocabulary_in_ones": (1, ("vocabulary",)),
}
"""How wide the tensors are whose columns are summed over the tokens: a number times sizes."""

_ROWS_OF_A_BLOCK = {"vocabulary_in_twos": 8, "vocabulary_in_ones": 16}
"""Rows of threads in a block that sums columns, each thread four of them: 4, of 32 threads; 8 where
four do not divide the columns and a thread sums two, 16 where it sums one."""
_BY_ROWS = {4: "fours", 8: "twos", 16: "ones"}
"""How many columns a thread sums."""


VARIABLES = (
    *SIZES,
    "workspace",
    *("length_and_one", "length_less_one", "queries_keys_values"),
    *(f"length_by_{unit}" for unit in (8, 16, 32, 128)),
    "windowed",
    *("splits", "gradient_workspace", "gradient_workspace_16_bit"),
    *("touched_rows", "partial_segments", "sort_storage"),
    *("scan_storage", "rows_scan_storage"),
    *("patch_weights_checked", "patch_positions_checked"),
    *("types_segments", "types_sort_storage", "choices_sort_storage", "experts_sort_storage"),
    "chosen_sort_storage",
    *(
        f"{columns}_by_{columns_of_a_block(_ROWS_OF_A_BLOCK.get(columns, 4))}"
        for columns in COLUMNS
    ),
    *(f"{columns}_partial_sums" for columns in COLUMNS),
    "choice_parts",
    *FACTORED,
)
"""By number, as formulas name them."""

_SORTED_ABOVE = 3072
"""Tokens (3,072 | 3,073) from which on the gradient of an embedding sorts its indices."""

_HEADS_SERVED = (64, 96, 128)
"""Sizes of a head that were recorded serving; sums of others are rounded up, or blocks smaller."""

_HEADS_SERVED_EAGERLY = (*_HEADS_SERVED, 192, 256)
"""And with eager attention, which rounds none."""
_SORTED_BY_ONE_BLOCK = 2304
"""Indices (2,304 | 2,305) up to which a radix sort has no temporary storage."""

_NORMED_IN_PARTS_ABOVE = 65_536
"""Tokens (12,336 | 100,480) from which on the gradients of a LayerNorm are summed in parts, by the
condition in PyTorch's kernel; RMSNorm, as written in transformers, has none."""

_CHECKED = 8192
"""Numbers that a block checks for one that is true, with as many blocks as fill the card."""

_SORTED_BY_ITSELF = 4096
"""Indices (4,096 | 4,097) up to which torch.sort has a kernel that needs no storage."""

_TYPES = 2
"""Of BERT's tokens."""

_WORKSPACE = 8_519_680
_WORKSPACE_SINCE_HOPPER = 32 << 20
_HOPPER = 9


def variables_of(sizes: Sizes, card: Card, *, is_step: bool = False) -> dict[str, int]:
    """By name, every variable; a size that the family has not is 0.

    is_step: of serving, a step of one token; `length` is what its cache holds then.
    """
    known = {name: sizes.get(name, 0) for name in SIZES}
    length, tokens = sizes["length"], sizes["batch"] * sizes["length"]
    routed = sizes["batch"] if is_step else tokens
    choices = routed * known["chosen"]
    is_hopper = card.capability[0] >= _HOPPER
    found = {
        **known,
        "workspace": _WORKSPACE_SINCE_HOPPER if is_hopper else _WORKSPACE,
        "length_and_one": length + 1,
        "length_less_one": length - 1,
        "queries_keys_values": (known["heads"] + 2 * known["kv_heads"]) * known["head_dim"],
        **{f"length_by_{unit}": -(-length // unit) * unit for unit in (8, 16, 32, 128)},
        "windowed": min(length, sizes.get("window") or length),
        "splits": attention_splits(known, card.multiprocessors, is_step=is_step),
        "choice_parts": _choice_parts(known, card),
        "gradient_workspace": _gradient_workspace(length, known["head_dim"], is_fp32=True),
        "gradient_workspace_16_bit": _gradient_workspace(length, known["head_dim"], is_fp32=False),
        **_sorted(tokens, known["vocabulary"]),
        "patch_weights_checked": _blocks_checking(_patch_weights(known), card),
        "patch_positions_checked": _blocks_checking(_patch_positions(known), card),
        "types_segments": tokens // 10 + _TYPES,
        "types_sort_storage": _sort_storage(tokens, _digits(_TYPES)),
        "choices_sort_storage": _sort_storage(choices, _digits(routed)),
        "chosen_sort_storage": _sort_storage(choices, _digits(choices)),
        "experts_sort_storage": _sort_storage(choices, 8),
        **factored_variables(known, card),
    }
    for name, (factor, of) in COLUMNS.items():
        columns = factor * prod(known[size] for size in of)
        rows = _ROWS_OF_A_BLOCK.get(name, 4)
        width = columns_of_a_block(rows)
        found[f"{name}_by_{width}"] = -(-columns // width)
        found[f"{name}_partial_sums"] = partial_sums(tokens, columns, card, rows)
    return found


def _choice_parts(sizes: Sizes, card: Card) -> int:
    """Into how many blocks the choice of the likeliest token of a sequence is taken apart."""
    return parts_of(sizes["vocabulary"], -(-card.blocks(512) // sizes["batch"]))


def _blocks_checking(numbers: int, card: Card) -> int:
    """Blocks that check whether numbers that are drawn at random lie within bounds."""
    return min(-(-numbers // _CHECKED), card.blocks(512))


def _patch_weights(sizes: Sizes) -> int:
    """Numbers of the convolution that embeds patches of three colours, which torchvision draws
    within bounds."""
    return 3 * sizes["hidden"] * sizes["patch"] ** 2


def _patch_positions(sizes: Sizes) -> int:
    """Numbers of an image's positions, which transformers draws within bounds."""
    return sizes["hidden"] * sizes["length"]


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
        "sort_storage": _sort_storage(tokens, _digits(vocabulary)),
        "scan_storage": 256 * (4 + -(-tokens // 21504)) - 1,
        "rows_scan_storage": 256 * (4 + -(-rows // 14336)) - 1,
    }


def _digits(values: int) -> int:
    """Digits of 8 bits of an index below `values`."""
    return -(-max(values - 1, 1).bit_length() // 8)


def _sort_storage(count: int, digits: int) -> int:
    """The temporary storage of a radix sort of `count` indices.

    Tables of 1,024 bytes for each tile of 3,840 and 2,048 for each digit of 8 bits, and from the
    second digit on two arrays of 8 bytes an index; a byte where one block sorts them all.
    """
    if count <= _SORTED_BY_ONE_BLOCK:
        return 1
    arrays = 2 * -(-count // 32) if digits > 1 else 0
    return 256 * (arrays + 2 + 8 * digits + 4 * -(-count // 3840)) - 1


def regime_of(sizes: Sizes, card: Card, mask_unit: int = 0) -> str:
    """The way through the kernels: batch, tokens, heads, splits of attention, its mask, a window,
    and where `factored` says the bytes of a number Adafactor's sums.

    mask_unit: numbers of a mask that its rows are padded to; 0 without one.  With one no flash
    attention runs.  It is 1 for eager attention, which goes one way whatever the window.
    """
    tokens = sizes["batch"] * sizes["length"]
    has_layer_norms = sizes.get("positions") or sizes.get("patch")
    if sizes.get("positions") and sizes["length"] > _SORTED_ABOVE:
        many = "long"  # the gradient of the positions is sorted, too
    elif has_layer_norms and tokens > _NORMED_IN_PARTS_ABOVE:
        many = "crowd"
    elif sizes.get("patch") and sizes["batch"] > IN_TWO_PASSES_ABOVE:
        many = "crowd"  # what is summed over images is, in two passes
    elif tokens > _SORTED_ABOVE:
        many = "sorted"
    else:
        many = "two" if tokens > IN_TWO_PASSES_ABOVE else "few"
    if mask_unit:
        attention = "padded" if sizes["length"] % mask_unit else "masked"
    else:
        splits = attention_splits(sizes, card.multiprocessors)
        attention = "split" if splits > 1 else "whole"
    parts = [_batch(sizes), many, _heads(sizes), attention]
    parts += ["window"] * bool(sizes.get("window") and mask_unit != 1)
    parts += _of_a_family(sizes, tokens, card)
    if sizes.get("factored"):
        parts.append(factored_way(sizes))
    return ".".join(parts)


def _of_a_family(sizes: Sizes, tokens: int, card: Card) -> list[str]:
    """What only some families have: sums of a vocabulary's biases, choices of experts, patches.

    A thread takes four columns at a time, or two, or one; never in two passes where the columns
    alone fill the card.  Above some gigabytes a sum is in parts.
    """
    found, vocabulary = [], sizes.get("vocabulary", 0)
    if sizes.get("output_bias"):
        rows = 4 if vocabulary % 4 == 0 else 8 if vocabulary % 2 == 0 else 16
        if tokens > 255 * rows and filling(vocabulary, card, rows) > 1:
            found.append(_BY_ROWS[rows])
        found += ["parts"] * (2 * tokens * vocabulary > INDEXED)
    found += _of_experts(sizes, tokens)
    if sizes.get("patch"):
        widest = max(sizes.get("intermediate", 0), 3 * sizes["hidden"])
        # Of the two that see, transformers' names the kinds that it tells apart.
        drawn = _patch_positions(sizes) if vocabulary else _patch_weights(sizes)
        found += ["narrow"] * (drawn <= AT_ONCE)
        found += ["parts"] * (4 * tokens * widest > INDEXED)
    return found


def _of_experts(sizes: Sizes, tokens: int) -> list[str]:
    """Whether a token has one expert, and whether choices are sorted with storage."""
    chosen = sizes.get("chosen", 0)
    return ["one"] * (chosen == 1) + ["many"] * (tokens * chosen > _SORTED_BY_ITSELF)


def prompt_regime(sizes: Sizes, card: Card, *, is_fused: bool, is_eager: bool = False) -> str:
    """The way of a prompt through the kernels in serving.

    is_fused: whether attention is FlashAttention's.  is_eager: whether it is no kernel of its own.
    """
    splits = attention_splits(sizes, card.multiprocessors) if is_fused else 1
    if sizes["length"] == 1:
        return "one token"
    return _served(sizes, splits, sizes["batch"] * sizes["length"], is_eager=is_eager)


def step_regime(sizes: Sizes, card: Card, *, is_fused: bool, is_eager: bool = False) -> str:
    """The way of one token; `length` is what the cache holds then."""
    splits = attention_splits(sizes, card.multiprocessors, is_step=True) if is_fused else 1
    return _served(sizes, splits, sizes["batch"], is_eager=is_eager)


def _served(sizes: Sizes, splits: int, tokens: int, *, is_eager: bool) -> str:
    """Batch, heads, splits of attention, whether the token is chosen in parts, and how many experts
    are."""
    choice = "parts" if sizes["vocabulary"] > AT_ONCE else "at-once"
    if sizes["head_dim"] not in (_HEADS_SERVED_EAGERLY if is_eager else _HEADS_SERVED):
        return f"heads of {sizes['head_dim']}"
    way = (_batch(sizes), _heads(sizes), "split" if splits > 1 else "whole", choice)
    return ".".join((*way, *_of_experts(sizes, tokens)))


def _batch(sizes: Sizes) -> str:
    return "single" if sizes["batch"] == 1 else "several"


def _heads(sizes: Sizes) -> str:
    heads, kv_heads = sizes["heads"], sizes.get("kv_heads", sizes["heads"])
    return "one" if kv_heads == 1 else "own" if kv_heads == heads else "shared"


def attention_splits(sizes: Sizes, multiprocessors: int, *, is_step: bool = False) -> int:
    """Into how many parts FlashAttention-2 takes the keys, so that a small job fills the card.

    It wants blocks for four fifths of the places, two on each multiprocessor; else it takes the
    fewest parts that fill them 0.85 times as well as the best number does.  Source:
    flash-attention's split-key heuristic, blocks of 64 queries and 64, 128 or 256 keys by the size
    of a head.  is_step: one query for each head; those of heads that share their keys
    are one sequence then.
    """
    places = 2 * multiprocessors
    head_dim, length = sizes["head_dim"], sizes["length"]
    block = 256 if head_dim <= 64 else 128 if head_dim <= 128 else 64
    key_blocks = -(-length // block)
    if is_step:
        sharing = sizes["heads"] // sizes["kv_heads"] if sizes["kv_heads"] else 1
        jobs = sizes["batch"] * (sizes["heads"] // sharing) * -(-sharing // 64)
    else:
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
