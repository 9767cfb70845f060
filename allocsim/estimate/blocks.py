"""How many bytes a row of numbers takes in each type of ggml.

Rule: a type is a block of so many weights in so many bytes, scales and minima among them; a row
that a block does not divide has no such type.  Source: the structs `block_q4_K` and so on of
`ggml-org/ggml`, src/ggml-common.h, whose fields are what the comments name, and the numbers of
`enum ggml_type` in include/ggml.h.
"""

from __future__ import annotations

from dataclasses import dataclass

from allocsim.errors import ConfigError

__all__ = ["BLOCKS", "Block", "NUMBERS", "bytes_in"]


@dataclass(frozen=True, slots=True)
class Block:
    """weights: how many numbers.  size: bytes for them all."""

    weights: int
    size: int

    @property
    def bits(self) -> float:
        """Bits a weight, scales among them."""
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
    "Q4_0": Block(32, 2 + 16),  # a scale of 16 bits, 4 bits a weight
    "Q4_1": Block(32, 2 + 2 + 16),  # a minimum too
    "Q5_0": Block(32, 2 + 4 + 16),  # the fifth bits apart
    "Q5_1": Block(32, 2 + 2 + 4 + 16),
    "Q8_0": Block(32, 2 + 32),
    "Q8_1": Block(32, 4 + 32),  # scale and sum, 16 bits each
    "Q2_K": Block(256, 16 + 64 + 2 + 2),  # 16 scales with minima of 4 bits, and their own
    "Q3_K": Block(256, 32 + 64 + 12 + 2),  # high bits, low bits, 16 scales of 6 bits, their own
    "Q4_K": Block(256, 2 + 2 + 12 + 128),  # 8 scales and minima of 6 bits
    "Q5_K": Block(256, 2 + 2 + 12 + 32 + 128),
    "Q6_K": Block(256, 128 + 64 + 16 + 2),  # 16 scales of 8 bits
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
"""By ggml's name of a type."""

NUMBERS = {
    **dict(enumerate(("F32", "F16", "Q4_0", "Q4_1"))),
    **dict(enumerate(("Q5_0", "Q5_1", "Q8_0", "Q8_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K"), 6)),
    **dict(enumerate(("Q6_K", "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL"), 14)),
    **dict(enumerate(("IQ3_S", "IQ2_S", "IQ4_XS", "I8", "I16", "I32", "I64", "F64"), 21)),
    **{29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4"},
}
"""By the number that stands in a GGUF file, a type's name; 4, 5 and 31 to 33 were withdrawn."""


def bytes_in(kind: str, weights: int) -> int:
    """Bytes of `weights` numbers, whole blocks of them.  Raises ConfigError for parts of one."""
    block = BLOCKS[kind]
    if weights % block.weights:
        raise ConfigError(f"{weights:,} weights are no whole blocks of {block.weights} of {kind}")
    return weights // block.weights * block.size
