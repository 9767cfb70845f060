"""Bytes of keys and values that a server stores for earlier tokens.

Rule: each token and layer has a row of keys and a row of values, as wide as its key and value
    heads. A layer with a sliding window stores only its window if the engine makes use of the
    window. Where this is unknown, the result is a range, from the windows up to all tokens on all
    layers. Sources: Pope et al., "Efficiently Scaling Transformer Inference" (2022), on the cache;
    for llama.cpp, the types of --cache-type-k and --cache-type-v (tools/server/README.md).
"""

from __future__ import annotations

from allocsim.errors import ConfigError
from allocsim.fitting.formulas.blocks import BLOCKS
from allocsim.fitting.formulas.shapes import Sizes
from allocsim.units import round_up

__all__ = ["KV_TYPES", "bytes_a_token", "kv_bytes", "kv_range"]

_PLAIN = {"fp32": "F32", "fp16": "F16", "bf16": "BF16", "f32": "F32", "f16": "F16", "fp8": "I8"}
_BLOCKS = ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
KV_TYPES = ("fp32", "fp16", "bf16", "fp8", *_BLOCKS)
"""Types of keys and values that at least one engine supports."""


def _row(sizes: Sizes, kind: str) -> int:
    """Return the bytes of one token's keys in one layer."""
    name = _PLAIN.get(kind, kind.upper())
    if kind not in (*_PLAIN, *_BLOCKS):
        raise ConfigError(f"{kind[:40]!r} is not a type of a cache; expected {', '.join(KV_TYPES)}")
    block = BLOCKS[name]
    if sizes.kv_width % block.weights:
        raise ConfigError(
            f"keys of {sizes.kv_width} elements of {kind} are not a multiple of {block.weights}"
        )
    return sizes.kv_width // block.weights * block.size


def bytes_a_token(sizes: Sizes, kind: str) -> int:
    """Return the bytes of one token's keys and values on all layers.

    kind: one of `KV_TYPES`.
    """
    return 2 * sizes.layers * _row(sizes, kind)


def kv_bytes(sizes: Sizes, tokens: int, kind: str, *, layers: int | None = None) -> int:
    """Return the bytes of keys and values of `tokens` tokens, ignoring sliding windows.

    kind: one of `KV_TYPES`.
    layers: number of layers; default: all.
    """
    count = sizes.layers if layers is None else layers
    return 2 * count * tokens * _row(sizes, kind)


def kv_range(sizes: Sizes, tokens: int, kind: str, *, block: int = 1) -> tuple[int, int]:
    """Return the lowest and highest bytes of a sequence's keys and values.

    kind: one of `KV_TYPES`.
    block: tokens of a block; the cache consists of whole blocks.
    """
    whole = round_up(tokens, block)
    seen = min(whole, round_up(sizes.window, block)) if sizes.windowed else whole
    all_layers = kv_bytes(sizes, whole, kind)
    spared = kv_bytes(sizes, whole - seen, kind, layers=sizes.windowed)
    return all_layers - spared, all_layers
