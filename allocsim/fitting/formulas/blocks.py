"""Bytes of a row of elements in each type of ggml.

Rule: a type stores a block of a fixed number of weights, scales and minima in a fixed number of
    bytes; a row must consist of whole blocks. Source: the structs such as `block_q4_K` of
    `ggml-org/ggml`, src/ggml-common.h, whose fields the comments name, and the numbers of `enum
    ggml_type` in include/ggml.h.
"""

from __future__ import annotations

from dataclasses import dataclass

from allocsim.errors import ConfigError

__all__ = ["BLOCKS", "Block", "NUMBERS", "bytes_in"]


@dataclass(frozen=True, slots=True)
class Block:
    """Storage block of a type of ggml.

    weights: number of elements in the block.
    size: bytes of the block, including scales.
    """

    weights: int
    size: int

    @property
    def bits(self) -> float:
        """Bits per weight, including scales."""
        return 8 * self.size / self.weights


BLOCKS = {
    "F32": Block(1, 4),
    "F16": Block(1, 2),
    "BF16": Block(1, 2),
    "F64": Block(1, 8),
    "I8": Block(1, 1),
    "I16": Block(1, 2),
    "I32": Block(1, 4),
    "I64": Block(1, 8),
    "Q4_0": Block(32, 2 + 16),  # 16-bit scale, 4 bits per weight
    "Q4_1": Block(32, 2 + 2 + 16),  # also a minimum
    "Q5_0": Block(32, 2 + 4 + 16),  # fifth bits stored separately
    "Q5_1": Block(32, 2 + 2 + 4 + 16),
    "Q8_0": Block(32, 2 + 32),
    "Q8_1": Block(32, 4 + 32),  # scale and sum, 16 bits each
    "Q2_K": Block(256, 16 + 64 + 2 + 2),  # 16 4-bit scales and minima, and their own scales
    "Q3_K": Block(256, 32 + 64 + 12 + 2),  # high bits, low bits, 16 6-bit scales, their own scale
    "Q4_K": Block(256, 2 + 2 + 12 + 128),  # 8 6-bit scales and minima
    "Q5_K": Block(256, 2 + 2 + 12 + 32 + 128),
    "Q6_K": Block(256, 128 + 64 + 16 + 2),  # 16 8-bit scales
    "Q8_K": Block(256, 4 + 256 + 32),
    "IQ1_S": Block(256, 2 + 32 + 16),
    "IQ1_M": Block(256, 32 + 16 + 8),
    "IQ2_XXS": Block(256, 2 + 64),
    "IQ2_XS": Block(256, 2 + 64 + 8),
    "IQ2_S": Block(256, 2 + 64 + 8 + 8),
    "IQ3_XXS": Block(256, 2 + 96),
    "IQ3_S": Block(256, 2 + 64 + 8 + 32 + 4),
    "IQ4_NL": Block(32, 2 + 16),
    "IQ4_XS": Block(256, 2 + 2 + 4 + 128),
    "TQ1_0": Block(256, 2 + 48 + 4),
    "TQ2_0": Block(256, 2 + 64),
    "MXFP4": Block(32, 1 + 16),
}
"""Block of each type, by ggml's name."""

NUMBERS = {
    **dict(enumerate(("F32", "F16", "Q4_0", "Q4_1"))),
    **dict(enumerate(("Q5_0", "Q5_1", "Q8_0", "Q8_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K"), 6)),
    **dict(enumerate(("Q6_K", "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL"), 14)),
    **dict(enumerate(("IQ3_S", "IQ2_S", "IQ4_XS", "I8", "I16", "I32", "I64", "F64"), 21)),
    **{29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4"},
}
"""Name of each type, by its number in a GGUF file; 4, 5 and 31 to 33 were withdrawn."""


def bytes_in(kind: str, weights: int) -> int:
    """Return the bytes of `weights` elements of the type `kind`, such as "Q4_K".

    Raises ConfigError if the elements do not fill whole blocks.
    """
    block = BLOCKS[kind]
    if weights % block.weights:
        raise ConfigError(f"{weights:,} weights of {kind} are not a multiple of {block.weights}")
    return weights // block.weights * block.size
