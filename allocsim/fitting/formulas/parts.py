"""Uses of the memory that a model needs, such as the KV cache, as ranges of bytes.

For layers with a sliding window, some engines cache the keys and values of all tokens, and others
only those of the window.  If this is not known, the size is a range.
"""

# Sources: Pope et al., "Efficiently Scaling Transformer Inference" (2022), on the cache;
# DeepSeek-V2's report (2024), on latent attention; for llama.cpp, the types of --cache-type-k and
# --cache-type-v (tools/server/README.md).

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from allocsim.errors import ConfigError
from allocsim.fitting.formulas.ggml import BLOCKS
from allocsim.fitting.formulas.sizes import ModelSizes
from allocsim.units import MIB, round_up

_PLAIN = {"fp32": "F32", "fp16": "F16", "bf16": "BF16", "f32": "F32", "f16": "F16", "fp8": "I8"}
_BLOCKS = ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
WORKSPACE = 8_519_680
"""Bytes of cuBLAS's workspace on GPUs below compute capability 9.0.

From PyTorch 2.15 on, it is allocated and freed with each matrix product.
"""
LARGE_WORKSPACE = 32 * MIB
KV_TYPES = ("fp32", "fp16", "bf16", "fp8", *_BLOCKS)
"""Data types of keys and values that at least one engine supports, such as "fp8"."""


def row_bytes(kept: Iterable[int], kind: str) -> int:
    """Return the bytes that the KV cache of one layer takes for one token.

    kept: number of elements of the keys and of the values, as in `ModelSizes.kept`.
    kind: type of the elements, one of `KV_TYPES`.

    Raises ConfigError for an unknown type, or if the elements do not fill whole blocks of the type.
    """
    name = _PLAIN.get(kind, kind.upper())
    if kind not in (*_PLAIN, *_BLOCKS):
        raise ConfigError(f"{kind[:40]!r} is not a type of a cache; expected {', '.join(KV_TYPES)}")
    block = BLOCKS[name]
    for width in (widths := tuple(kept)):
        if width % block.weights:
            raise ConfigError(
                f"keys of {width} elements of {kind} are not a multiple of {block.weights}"
            )
    return sum(widths) // block.weights * block.size


def bytes_a_token(sizes: ModelSizes, kind: str) -> int:
    """Return the bytes that the KV cache of all layers takes for one token.

    kind: type of the elements, one of `KV_TYPES`.
    """
    return sum(each.count * row_bytes(each.kept, kind) for each in sizes.cached)


def kv_range(sizes: ModelSizes, tokens: int, kind: str, *, block: int = 1) -> tuple[int, int]:
    """Return the range (low, high) of the size of one sequence's keys and values, in bytes.

    `low` and `high` differ if the model has sliding windows, which an engine may or may not use.

    tokens: number of tokens in the sequence.
    kind: type of the elements, one of `KV_TYPES`.
    block: number of tokens per block of a paged cache; a sequence takes whole blocks.
    """
    whole = round_up(tokens, block)
    states = len(sizes.linear.layers) * sizes.linear.state_bytes if sizes.linear else 0
    low = sum(
        each.count * row_bytes(each.kept, kind) * min(whole, round_up(each.window or whole, block))
        for each in sizes.cached
    )
    return low + states, whole * bytes_a_token(sizes, kind) + states


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """One use of memory, such as the KV cache, as a range of bytes from `low` to `high`.

    why: reason why `low` and `high` differ, or source of the number.
    """

    name: str
    low: int
    high: int
    why: str = ""


def fits_in(memory: int, process: tuple[int, int]) -> bool | None:
    """Return True if a process certainly fits in `memory` bytes, False if not, None if uncertain.

    process: range (low, high) of the bytes of the process; uncertain means that only `low` fits.
    """
    low, high = process
    return high <= memory or (None if low <= memory else False)
