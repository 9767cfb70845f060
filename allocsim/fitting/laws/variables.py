"""Variables of the formulas for requests: sizes, and numbers that kernels derive from sizes.

A number that a kernel rounds up or derives from sizes, such as the batch size, is a separate
variable, so the bytes of a request are a constant times a product of variables.
"""

# Sources: runs of PyTorch and FlashAttention-2. Each threshold was found by bisection between the
# two sizes given with it, such as (3,072 | 3,073).

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from allocsim.fitting.laws.sums import (
    AT_ONCE,
    FACTORED,
    IN_TWO_PASSES_ABOVE,
    INDEXED,
    Card,
    columns_of_a_block,
    factored_variables,
    partial_sums,
    parts_of,
    sums_that_fill_gpu,
)

Sizes = Mapping[str, int]

SIZES = (
    *("hidden", "intermediate", "heads", "kv_heads", "head_dim", "vocabulary"),
    *("batch", "length", "lora", "positions", "experts", "chosen", "patch"),
)
"""Sizes of a model and its input on which the bytes of a request may depend.

The number of layers is missing, because it changes only the number of requests.

length: tokens of a sequence, including the class token of an image.
patch: pixels of a patch's side.
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
"""Number of columns, as (factor, sizes to multiply), of each tensor that is summed over tokens."""

_ROWS_OF_A_BLOCK = {"vocabulary_in_twos": 8, "vocabulary_in_ones": 16}
"""Rows of threads in a thread block that sums a tensor of `COLUMNS`; 4 for tensors not given here.

With 4 rows, of 32 threads each, a thread sums four columns. If four does not divide the number of
columns, there are 8 rows and a thread sums two columns, or 16 rows and it sums one.
"""
_BY_ROWS = {4: "fours", 8: "twos", 16: "ones"}
"""Word in a regime's name for each number of rows of threads in a thread block.

The word gives the number of columns that a thread sums.
"""


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
    *("query_norm_sums", "key_norm_sums"),
)
"""Names of the variables (numbers such as the batch size); `Formula` refers to them by index."""

_SORTED_ABOVE = 3072
"""Maximum number of tokens for which an embedding's gradient sorts no indices; 3,073 are sorted."""

_HEADS_SERVED = (64, 96, 128)
"""Head sizes that were recorded in serving; laws refuse others.

With other head sizes, kernels round sums or use smaller blocks.
"""

_HEADS_SERVED_EAGERLY = (*_HEADS_SERVED, 192, 256)
"""Head sizes that were recorded in serving with eager attention, which rounds no sums."""
_SORTED_BY_ONE_BLOCK = 2304
"""Maximum number of indices that one thread block radix-sorts without storage; 2,305 need it."""

_NORMED_IN_PARTS_ABOVE = 65_536
"""Maximum number of tokens for which the weight gradients of a LayerNorm are summed in one part.

12,336 tokens were seen in one part and 100,480 in several; the limit is from the condition in
PyTorch's kernel. RMSNorm in transformers has no such kernel.
"""

_CHECKED = 8192
"""Elements per thread block of the kernel that checks the bounds of an image model's new weights.

The number of thread blocks is at most the number that fills the GPU.
"""

_SORTED_WITHOUT_STORAGE = 4096
"""Maximum number of indices that torch.sort sorts without temporary storage; 4,097 need it."""

_TYPES = 2
"""Number of token types in BERT."""

_WORKSPACE = 8_519_680
_WORKSPACE_SINCE_HOPPER = 32 << 20
_HOPPER = 9


def variables_of(sizes: Sizes, card: Card, *, is_step: bool = False) -> dict[str, int]:
    """Return the value of each variable in `VARIABLES`; 0 for a size that a model family lacks.

    is_step: True for one serving step that generates a token; `sizes["length"]` is then the number
        of tokens in the KV cache.
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
        "choice_parts": parts_of(known["vocabulary"], -(-card.blocks(512) // known["batch"])),
        "gradient_workspace": _gradient_workspace(length, known["head_dim"], is_fp32=True),
        "gradient_workspace_16_bit": _gradient_workspace(length, known["head_dim"], is_fp32=False),
        **_embedding_sort(tokens, known["vocabulary"]),
        "patch_weights_checked": _check_blocks(_patch_weights(known), card),
        "patch_positions_checked": _check_blocks(_patch_positions(known), card),
        "types_segments": tokens // 10 + _TYPES,
        "types_sort_storage": _sort_storage(tokens, _digits(_TYPES)),
        "choices_sort_storage": _sort_storage(choices, _digits(routed)),
        "chosen_sort_storage": _sort_storage(choices, _digits(choices)),
        "experts_sort_storage": _sort_storage(choices, 8),
        **factored_variables(known, card),
    }
    for name, heads in (("query", known["heads"]), ("key", known["kv_heads"])):
        sums = partial_sums(tokens * heads, known["head_dim"], card, 4)
        found[f"{name}_norm_sums"] = sums if sizes.get("head_norms") else 0
    for name, (factor, of) in COLUMNS.items():
        columns = factor * prod(known[size] for size in of)
        rows = _ROWS_OF_A_BLOCK.get(name, 4)
        width = columns_of_a_block(rows)
        found[f"{name}_by_{width}"] = -(-columns // width)
        found[f"{name}_partial_sums"] = partial_sums(tokens, columns, card, rows)
    return found


def _check_blocks(numbers: int, card: Card) -> int:
    return min(-(-numbers // _CHECKED), card.blocks(512))


def _patch_weights(sizes: Sizes) -> int:
    return 3 * sizes["hidden"] * sizes["patch"] ** 2


def _patch_positions(sizes: Sizes) -> int:
    return sizes["hidden"] * sizes["length"]


def _gradient_workspace(length: int, head_dim: int, *, is_fp32: bool) -> int:
    # Per head and sequence, memory-efficient attention needs a gradient in fp32 and counters for
    # each block of keys.
    block = 64 if head_dim <= 64 else 128
    width = -(-head_dim // block) * block
    return -(-length // block) * (4 * block * width + (block // 4 if is_fp32 else 16))


def _embedding_sort(tokens: int, vocabulary: int) -> dict[str, int]:
    # Scans need 256 bytes for each 16 tiles; segments are of ten indices.
    rows = min(tokens, vocabulary)
    return {
        "touched_rows": rows,
        "partial_segments": tokens // 10 + rows,
        "sort_storage": _sort_storage(tokens, _digits(vocabulary)),
        "scan_storage": 256 * (4 + -(-tokens // 21504)) - 1,
        "rows_scan_storage": 256 * (4 + -(-rows // 14336)) - 1,
    }


def _digits(values: int) -> int:
    return -(-max(values - 1, 1).bit_length() // 8)


def _sort_storage(count: int, digits: int) -> int:
    # A radix sort has tables of 1,024 bytes per tile of 3,840 indices and 2,048 bytes per 8-bit
    # digit; with two or more digits also two arrays of 8 bytes per index. If one block sorts all
    # indices, it is one byte.
    if count <= _SORTED_BY_ONE_BLOCK:
        return 1
    arrays = 2 * -(-count // 32) if digits > 1 else 0
    return 256 * (arrays + 2 + 8 * digits + 4 * -(-count // 3840)) - 1


def regime_of(sizes: Sizes, card: Card, mask_unit: int = 0) -> str:
    """Return the name of a training program's regime: a range of sizes with the same kernels.

    mask_unit: each row of the attention mask is padded to a multiple of this number, which is 8 for
        fused attention and 1 for eager attention; 0 if FlashAttention runs, without a mask.
    """
    tokens = sizes["batch"] * sizes["length"]
    has_layer_norms = sizes.get("positions") or sizes.get("patch")
    if sizes.get("positions") and sizes["length"] > _SORTED_ABOVE:
        many = "long"  # the gradient of the positions is sorted, too
    elif has_layer_norms and tokens > _NORMED_IN_PARTS_ABOVE:
        many = "crowd"
    elif sizes.get("patch") and sizes["batch"] > IN_TWO_PASSES_ABOVE:
        many = "crowd"  # sums over images take two passes
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
    parts += _family_parts(sizes, tokens, card)
    return ".".join(parts)


def _family_parts(sizes: Sizes, tokens: int, card: Card) -> list[str]:
    # A thread sums four columns at a time, or two, or one. A sum takes one pass if the columns
    # alone fill the GPU, and is split if the tensor is larger than `INDEXED`.
    found, vocabulary = [], sizes.get("vocabulary", 0)
    if sizes.get("output_bias"):
        rows = 4 if vocabulary % 4 == 0 else 8 if vocabulary % 2 == 0 else 16
        if tokens > 255 * rows and sums_that_fill_gpu(vocabulary, card, rows) > 1:
            found.append(_BY_ROWS[rows])
        found += ["parts"] * (sizes.get("logit_bytes", 2) * tokens * vocabulary > INDEXED)
    found += _expert_parts(sizes, tokens)
    if sizes.get("head_norms") and tokens * sizes["kv_heads"] <= IN_TWO_PASSES_ABOVE:
        found.append("brief")
    if sizes.get("patch"):
        widest = max(sizes.get("intermediate", 0), 3 * sizes["hidden"])
        # Of the two image families, only transformers' configuration gives the number of classes.
        drawn = _patch_positions(sizes) if vocabulary else _patch_weights(sizes)
        found += ["narrow"] * (drawn <= AT_ONCE)
        found += ["parts"] * (4 * tokens * widest > INDEXED)
    return found


def _expert_parts(sizes: Sizes, tokens: int) -> list[str]:
    chosen = sizes.get("chosen", 0)
    return ["one"] * (chosen == 1) + ["many"] * (tokens * chosen > _SORTED_WITHOUT_STORAGE)


def prompt_regime(sizes: Sizes, card: Card, *, is_fused: bool, is_eager: bool = False) -> str:
    """Return the name of the regime (range of sizes with the same kernels) of a prompt in serving.

    sizes: dimensions of the model by name, with "batch" and "length" (tokens of the prompt).
    is_fused: True if attention is FlashAttention.
    """
    is_fused = is_fused and served_window(sizes, is_eager=is_eager) != "filled"
    splits = attention_splits(sizes, card.multiprocessors) if is_fused else 1
    if sizes["length"] == 1:
        return "one token"
    return _serving_regime(sizes, splits, sizes["batch"] * sizes["length"], is_eager=is_eager)


def step_regime(sizes: Sizes, card: Card, *, is_fused: bool, is_eager: bool = False) -> str:
    """Return the name of the regime (range of sizes with the same kernels) of a generated token.

    sizes: dimensions of the model by name, with "batch" and "length" (tokens in the KV cache).
    is_fused: True if attention is FlashAttention.
    """
    is_fused = is_fused and served_window(sizes, is_eager=is_eager) != "filled"
    splits = attention_splits(sizes, card.multiprocessors, is_step=True) if is_fused else 1
    return _serving_regime(sizes, splits, sizes["batch"], is_eager=is_eager)


def served_window(sizes: Sizes, *, is_eager: bool) -> str:
    """Return "filled" if the tokens fill the sliding window, else "window"; "" without a window.

    With eager attention the result is always "".
    """
    window = 0 if is_eager else sizes.get("window", 0)
    return ("filled" if sizes["length"] >= window else "window") if window else ""


def _serving_regime(sizes: Sizes, splits: int, tokens: int, *, is_eager: bool) -> str:
    choice = "parts" if sizes["vocabulary"] > AT_ONCE else "at-once"
    if sizes["head_dim"] not in (_HEADS_SERVED_EAGERLY if is_eager else _HEADS_SERVED):
        return f"heads of {sizes['head_dim']}"
    way = [_batch(sizes), _heads(sizes), "split" if splits > 1 else "whole", choice]
    window = served_window(sizes, is_eager=is_eager)
    return ".".join((*way, *[window] * bool(window), *_expert_parts(sizes, tokens)))


def _batch(sizes: Sizes) -> str:
    return "single" if sizes["batch"] == 1 else "several"


def _heads(sizes: Sizes) -> str:
    heads, kv_heads = sizes["heads"], sizes.get("kv_heads", sizes["heads"])
    return "one" if kv_heads == 1 else "own" if kv_heads == heads else "shared"


def attention_splits(sizes: Sizes, multiprocessors: int, *, is_step: bool = False) -> int:
    """Return the number of parts into which FlashAttention-2 splits the keys to fill the GPU.

    is_step: True for a serving step that generates a token, with one query for each sequence.

    Source: flash-attention's split-key heuristic, with tiles of 64 queries and 64, 128 or 256 keys
    depending on the size of a head.
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
    # FlashAttention's own thresholds: 0.8 here, 0.85 below.
    if jobs >= 0.8 * places:
        return 1
    filled = {}
    # Numbers of splits with equal blocks per split are the same split; only the first counts.
    for splits in range(1, min(128, places, key_blocks) + 1):
        if splits == 1 or -(-key_blocks // splits) != -(-key_blocks // (splits - 1)):
            waves = jobs * splits / places
            filled[splits] = waves / -(-jobs * splits // places)
    best = max(filled.values())
    return min(splits for splits, share in filled.items() if share >= 0.85 * best)
