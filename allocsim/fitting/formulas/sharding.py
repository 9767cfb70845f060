"""Part of a served model that one card of a tensor parallel group holds.

Rule: a matrix whose outputs are heads or inner features is divided by rows, a matrix whose inputs
they are by columns. Embedding and output layer are divided by rows of the vocabulary, padded to 64.
Norms, routers, learned positions and biases of column-divided matrices are whole on every card.
With fewer key and value heads than cards, each card holds one whole head. Sources: Shoeybi et al.,
"Megatron-LM" (2019), section 3; vLLM, model_executor/layers/linear.py (QKVParallelLinear) and
vocab_parallel_embedding.py (DEFAULT_VOCAB_PADDING_SIZE).
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from allocsim.errors import ConfigError
from allocsim.fitting.formulas.shapes import ModelSizes, Shape
from allocsim.fitting.formulas.weights import Stored, Weights
from allocsim.units import round_up

__all__ = ["sizes_of_rank", "weights_of_rank"]

_BY_ROWS = ("attn_q", "ffn_gate", "ffn_up")
_OF_HEADS = ("attn_k", "attn_v")
_BY_COLUMNS = ("attn_output", "ffn_down")
_OF_VOCABULARY = ("token_embd", "output")
_PADDING = 64
_SCALES_WHOLE = ("fp8",)
"""Formats with one scale per matrix."""
_SCALES_OF_ROWS = ("int8", "fp8-rows")
"""Formats with one scale per row."""


def sizes_of_rank(sizes: ModelSizes, ranks: int) -> ModelSizes:
    """Return the sizes of the part that one of `ranks` cards holds, with the whole vocabulary.

    Raises ConfigError if heads or inner features cannot be divided evenly.
    """
    for name, count in (("attention heads", sizes.heads), ("inner features", sizes.inner)):
        if count % ranks:
            raise ConfigError(f"{ranks} cards do not divide {count:,} {name}")
    if sizes.kv_heads % ranks and ranks % sizes.kv_heads:
        raise ConfigError(f"{ranks} cards do not divide {sizes.kv_heads:,} key and value heads")
    return replace(
        sizes,
        heads=sizes.heads // ranks,
        kv_heads=max(sizes.kv_heads // ranks, 1),
        inner=sizes.inner // ranks,
    )


def weights_of_rank(weights: Weights, sizes: ModelSizes, ranks: int) -> Weights:
    """Return the part of `weights` that one of `ranks` cards holds.

    sizes: sizes of the whole model.

    Raises ConfigError as `sizes_of_rank` does.
    """
    part = sizes_of_rank(sizes, ranks)
    tensors = []
    owner = ""
    for each in weights.tensors:
        role = each.shape.role
        share = _share(owner if role == "bias" else role, sizes, part, ranks)
        # A column division adds up partial outputs, and the bias is added once to the sum.
        if role == "bias" and owner in _BY_COLUMNS:
            share = None
        tensors.append(each if share is None else _divided(each, share, weights.name))
        owner = owner if role == "bias" else role
    return replace(weights, tensors=tuple(tensors))


_Share = tuple[int, int]
"""Numerator and denominator of the part of a tensor that one card holds."""


def _share(role: str, sizes: ModelSizes, part: ModelSizes, ranks: int) -> _Share | None:
    """Return the part of a tensor that one card holds, or None if it holds the whole tensor.

    role: role of the tensor.
    part: sizes of the card's part of the model.
    """
    if role in _BY_ROWS or role in _BY_COLUMNS:
        return 1, ranks
    if role in _OF_HEADS:
        return part.kv_heads, sizes.kv_heads
    if role == "attn_qkv":
        return part.heads + 2 * part.kv_heads, sizes.heads + 2 * sizes.kv_heads
    if role in _OF_VOCABULARY:
        return round_up(round_up(sizes.vocabulary, _PADDING), ranks) // ranks, sizes.vocabulary
    return None


def _divided(each: Stored, share: _Share, kind: str) -> Stored:
    held, of = share
    shape = each.shape
    at = len(shape.dims) - 1 if shape.role in _BY_COLUMNS else max(len(shape.dims) - 2, 0)
    dims = tuple(
        -(-size * held // of) if number == at else size for number, size in enumerate(shape.dims)
    )
    elements = prod(dims)
    is_whole = kind in _SCALES_WHOLE
    is_whole |= kind in _SCALES_OF_ROWS and shape.role in _BY_COLUMNS
    return replace(
        each,
        shape=Shape(shape.role, dims, shape.layer),
        size=each.size * elements // max(shape.elements, 1),
        scales=each.scales if is_whole else -(-each.scales * held // of),
    )
