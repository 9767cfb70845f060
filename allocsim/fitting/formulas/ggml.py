"""Data types of ggml (llama.cpp): their bytes, and the type of each tensor in a GGUF file.

A type such as Q4_K stores a fixed number of weights, with their scales, as one block of bytes.  A
recipe such as Q4_K_M is for a whole file: most tensors have its base type, and some have a type
with more bits.
"""

# Sources: the structs such as `block_q4_K` of `ggml-org/ggml`, src/ggml-common.h, whose fields the
# comments name, and the numbers of `enum ggml_type` in include/ggml.h. Recipes:
# `llama_tensor_get_type` of `ggml-org/llama.cpp`, src/llama-quant.cpp, as of its releases of 2025;
# tests compare the sizes with tools/quantize/README.md.

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from allocsim.errors import ConfigError
from allocsim.fitting.formulas.shapes import Shape
from allocsim.fitting.formulas.sizes import ModelSizes


@dataclass(frozen=True, slots=True)
class QuantBlock:
    """Group of weights that a type of ggml stores together, with common scales.

    weights: number of weights.
    size: bytes of the weights and scales.
    """

    weights: int
    size: int

    @property
    def bits(self) -> float:
        """Bits per weight, including scales."""
        return 8 * self.size / self.weights


BLOCKS = {
    "F32": QuantBlock(1, 4),
    "F16": QuantBlock(1, 2),
    "BF16": QuantBlock(1, 2),
    "F64": QuantBlock(1, 8),
    "I8": QuantBlock(1, 1),
    "I16": QuantBlock(1, 2),
    "I32": QuantBlock(1, 4),
    "I64": QuantBlock(1, 8),
    "Q4_0": QuantBlock(32, 2 + 16),  # 16-bit scale, 4 bits per weight
    "Q4_1": QuantBlock(32, 2 + 2 + 16),  # also a minimum
    "Q5_0": QuantBlock(32, 2 + 4 + 16),  # fifth bits stored separately
    "Q5_1": QuantBlock(32, 2 + 2 + 4 + 16),
    "Q8_0": QuantBlock(32, 2 + 32),
    "Q8_1": QuantBlock(32, 4 + 32),  # scale and sum, 16 bits each
    "Q2_K": QuantBlock(256, 16 + 64 + 2 + 2),  # 16 4-bit scales and minima, and their own scales
    "Q3_K": QuantBlock(256, 32 + 64 + 12 + 2),  # high and low bits, 16 6-bit scales, their scale
    "Q4_K": QuantBlock(256, 2 + 2 + 12 + 128),  # 8 6-bit scales and minima
    "Q5_K": QuantBlock(256, 2 + 2 + 12 + 32 + 128),
    "Q6_K": QuantBlock(256, 128 + 64 + 16 + 2),  # 16 8-bit scales
    "Q8_K": QuantBlock(256, 4 + 256 + 32),
    "IQ1_S": QuantBlock(256, 2 + 32 + 16),
    "IQ1_M": QuantBlock(256, 32 + 16 + 8),
    "IQ2_XXS": QuantBlock(256, 2 + 64),
    "IQ2_XS": QuantBlock(256, 2 + 64 + 8),
    "IQ2_S": QuantBlock(256, 2 + 64 + 8 + 8),
    "IQ3_XXS": QuantBlock(256, 2 + 96),
    "IQ3_S": QuantBlock(256, 2 + 64 + 8 + 32 + 4),
    "IQ4_NL": QuantBlock(32, 2 + 16),
    "IQ4_XS": QuantBlock(256, 2 + 2 + 4 + 128),
    "TQ1_0": QuantBlock(256, 2 + 48 + 4),
    "TQ2_0": QuantBlock(256, 2 + 64),
    "MXFP4": QuantBlock(32, 1 + 16),
}
"""Block of each type, keyed by ggml's name of the type."""

NUMBERS = {
    **dict(enumerate(("F32", "F16", "Q4_0", "Q4_1"))),
    **dict(enumerate(("Q5_0", "Q5_1", "Q8_0", "Q8_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K"), 6)),
    **dict(enumerate(("Q6_K", "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL"), 14)),
    **dict(enumerate(("IQ3_S", "IQ2_S", "IQ4_XS", "I8", "I16", "I32", "I64", "F64"), 21)),
    **{29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4"},
}
"""Dictionary from the number of a type in a GGUF file to its name; 4, 5 and 31 to 33 are unused."""


def bytes_in(kind: str, weights: int) -> int:
    """Return the bytes of a tensor of `weights` elements in ggml's type `kind`, such as "Q4_K"."""
    block = BLOCKS[kind]
    if weights % block.weights:
        raise ConfigError(f"{weights:,} weights of {kind} are not a multiple of {block.weights}")
    return weights // block.weights * block.size


BASES = {
    **{name: name for name in ("F32", "F16", "BF16", "Q8_0", "Q6_K", "TQ1_0", "TQ2_0")},
    **{name: name for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "IQ4_XS", "IQ3_XXS")},
    **{name: name for name in ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ3_S")},
    **{f"Q5_K_{size}": "Q5_K" for size in "SM"},
    **{f"Q4_K_{size}": "Q4_K" for size in "SM"},
    **{f"Q3_K_{size}": "Q3_K" for size in "SML"},
    **{"Q2_K": "Q2_K", "Q2_K_S": "Q2_K"},
    **{"IQ2_S": "IQ2_XS", "IQ2_M": "IQ2_S", "IQ3_XS": "IQ3_S", "IQ3_M": "IQ3_S"},
}
"""Dictionary from a recipe, such as Q4_K_M, to the type of most tensors in a file made by it."""

_PLAIN = ("F32", "F16", "BF16")
_KEPT = ("norm", "bias", "router", "position")
_LOW = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M")
_TWO_BITS = ("IQ2_S", "IQ2_M")
_FALLBACK = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0", "TQ1_0": "Q4_0", "TQ2_0": "Q4_0"}
"""Dictionary from a type to its replacement for tensors whose rows are not whole blocks; for types
that are not listed, it is IQ4_NL."""
_Q5_OUTPUTS = ("Q2_K", "IQ3_XS", "IQ3_XXS", "Q3_K_S", "Q3_K_M", "IQ4_NL", "Q4_K_S", "Q4_K_M",
               "IQ3_S", "IQ3_M", "IQ4_XS")  # fmt: skip
"""Recipes that store attention outputs as Q5_K in models with eight experts."""


@dataclass(frozen=True, slots=True)
class _Tensor:
    """Tensor of a quantised GGUF file, with all values on which its ggml type depends.

    recipe: recipe of the file, a key of `BASES`, such as "Q4_K_M".
    base: type of most tensors of the file.
    shape: role and dimensions of the tensor.
    sizes: sizes of the model.
    has_imatrix: True if the file was made with an importance matrix.
    """

    recipe: str
    base: str
    shape: Shape
    sizes: ModelSizes
    has_imatrix: bool

    @property
    def layer(self) -> int:
        return self.shape.layer or 0

    @property
    def is_early(self) -> bool:
        return self.layer < self.sizes.layers // 8

    @property
    def takes_more(self) -> bool:
        layers = self.sizes.layers
        is_late = self.layer >= 7 * layers // 8
        return self.is_early or is_late or (self.layer - layers // 8) % 3 == 2

    @property
    def is_shared(self) -> bool:
        return self.sizes.heads // self.sizes.kv_heads >= 4

    @property
    def has_8_experts(self) -> bool:
        return self.sizes.experts == 8


def kind_of(recipe: str, shape: Shape, sizes: ModelSizes, *, has_imatrix: bool = False) -> str:
    """Return the ggml type, such as "Q6_K", of one tensor in a file that is quantised by `recipe`.

    recipe: a key of `BASES`, such as "Q4_K_M".
    shape: role and dimensions of the tensor.
    sizes: sizes of the model.
    has_imatrix: True if the file was made with an importance matrix, which changes a few tensors.
    """
    base = BASES.get(recipe)
    if base is None:
        raise ConfigError(f"{recipe[:40]!r} is not a GGUF type; expected one of {', '.join(BASES)}")
    if shape.role in _KEPT:
        return "F32"
    if recipe in _PLAIN:
        return base
    kind = _chosen(_Tensor(recipe, base, shape, sizes, has_imatrix))
    # Rows must consist of whole blocks; the fallback types have blocks of 32.
    if shape.dims[-1] % BLOCKS[kind].weights:
        kind = _FALLBACK.get(kind, "IQ4_NL")
    return "F16" if shape.dims[-1] % BLOCKS[kind].weights else kind


def _chosen(tensor: _Tensor) -> str:
    role = tensor.shape.role
    if role == "token_embd" and tensor.sizes.tied:
        role = "output"
    rules = _LOW_RULES if tensor.recipe in _LOW else _RULES
    rule = rules.get(role)
    return tensor.base if rule is None else rule(tensor)


def _output(tensor: _Tensor) -> str:
    if tensor.base == "Q8_0" or tensor.shape.dims[-1] % BLOCKS[tensor.base].weights:
        return "Q8_0"
    is_low = tensor.recipe in _LOW or tensor.recipe == "IQ3_XXS"
    return "Q5_K" if is_low else "Q6_K"


def _embedding(tensor: _Tensor) -> str:
    if tensor.recipe in (*_TWO_BITS, "IQ3_XXS"):
        return "IQ3_S"
    if tensor.recipe in _LOW:
        return "Q2_K"
    return "Q4_K" if tensor.recipe in ("TQ1_0", "TQ2_0") else tensor.base


def _raised(tensor: _Tensor) -> str:
    return "IQ3_S" if tensor.recipe in _TWO_BITS else "Q2_K"


def _low_values(tensor: _Tensor) -> str:
    return "Q4_K" if tensor.is_shared or tensor.sizes.experts >= 4 else _raised(tensor)


def _low_keys(tensor: _Tensor) -> str:
    return "Q4_K" if tensor.has_8_experts else tensor.base


def _low_down(tensor: _Tensor) -> str:
    return _raised(tensor) if tensor.is_early else tensor.base


def _low_attention_output(tensor: _Tensor) -> str:
    if tensor.has_8_experts:
        return "Q5_K"
    if tensor.recipe in ("IQ1_S", "IQ1_M"):
        return "IQ2_XXS"
    return "IQ3_S" if tensor.recipe in _TWO_BITS else tensor.base


def _values(tensor: _Tensor) -> str:
    if tensor.has_8_experts:
        return "Q8_0"
    layer, sizes = tensor.layer, tensor.sizes
    kinds = {
        "Q2_K": "Q3_K",
        "IQ3_XXS": "IQ3_S",
        "IQ3_M": "Q4_K",
        "Q3_K_M": "Q5_K" if layer < 2 else "Q4_K",
        "Q3_K_L": "Q5_K",
    }
    if tensor.is_shared:
        kinds |= dict.fromkeys(("Q2_K", "Q2_K_S", "IQ3_XXS", "IQ3_XS", "IQ3_S"), "Q4_K")
        kinds |= dict.fromkeys(("IQ4_NL", "IQ4_XS"), "Q5_K")
    if tensor.takes_more:
        kinds |= dict.fromkeys(("Q4_K_M", "Q5_K_M"), "Q6_K")
    if layer < 4:
        kinds["Q4_K_S"] = "Q5_K"
    kind = kinds.get(tensor.recipe, tensor.base)
    is_70b = sizes.layers == 80 and sizes.heads != sizes.kv_heads
    return "Q5_K" if is_70b and kind in ("Q3_K", "Q4_K") else kind


def _keys(tensor: _Tensor) -> str:
    return "Q8_0" if tensor.has_8_experts else _queries(tensor)


def _queries(tensor: _Tensor) -> str:
    return {"IQ3_XS": "IQ3_XXS", "IQ3_XXS": "IQ2_S"}.get(tensor.recipe, tensor.base)


def _fused(tensor: _Tensor) -> str:
    kinds = {"Q4_K_M": "Q5_K", "Q5_K_M": "Q6_K"}
    kinds |= dict.fromkeys(("Q3_K_M", "Q3_K_L", "IQ3_M"), "Q4_K")
    return kinds.get(tensor.recipe, tensor.base)


def _down(tensor: _Tensor) -> str:
    is_first = tensor.layer < tensor.sizes.layers // 16
    kinds = {"Q2_K": "Q3_K", "Q3_K_M": "Q5_K" if is_first else "Q4_K", "Q3_K_L": "Q5_K"}
    if tensor.takes_more:
        kinds |= dict.fromkeys(("Q4_K_M", "Q5_K_M"), "Q6_K")
    if tensor.is_early or (tensor.has_8_experts and tensor.takes_more):
        kinds["IQ3_M"] = "Q4_K"
    if tensor.is_early:
        kinds |= {"Q2_K_S": "Q4_K", "Q4_K_S": "Q5_K"}
    if not tensor.has_imatrix:
        kinds["IQ3_XXS"] = "Q4_K" if tensor.is_early else "Q3_K"
        kinds |= dict.fromkeys(("IQ4_NL", "IQ4_XS"), "Q5_K") if tensor.is_early else {}
    elif tensor.is_early:
        kinds |= {"Q4_0": "Q4_1", "Q5_0": "Q5_1"}
    return kinds.get(tensor.recipe, tensor.base)


def _attention_output(tensor: _Tensor) -> str:
    if tensor.has_8_experts:
        return "Q5_K" if tensor.recipe in _Q5_OUTPUTS else tensor.base
    kinds = {"Q2_K": "Q3_K", "IQ3_XXS": "IQ3_S", "Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K"}
    return {**kinds, "IQ3_M": "Q4_K"}.get(tensor.recipe, tensor.base)


def _gate_and_up(tensor: _Tensor) -> str:
    layers = tensor.sizes.layers
    is_middle = layers // 8 <= tensor.layer < 7 * layers // 8
    return "IQ3_XXS" if tensor.recipe == "IQ3_XS" and is_middle else tensor.base


_Rules = dict[str, Callable[[_Tensor], str]]

_RULES: _Rules = {
    "output": _output,
    "token_embd": _embedding,
    "attn_q": _queries,
    "attn_k": _keys,
    "attn_v": _values,
    "attn_qkv": _fused,
    "attn_output": _attention_output,
    "ffn_gate": _gate_and_up,
    "ffn_up": _gate_and_up,
    "ffn_down": _down,
}
_LOW_RULES: _Rules = {
    "output": _output,
    "token_embd": _embedding,
    "attn_k": _low_keys,
    "attn_v": _low_values,
    "attn_output": _low_attention_output,
    "ffn_down": _low_down,
}
