"""Which of ggml's types each tensor of a quantised GGUF file has.

Rule: a name such as Q4_K_M is a recipe: most tensors take its base type, some of them more bits,
by what they are for and how deep they lie.  Source: `llama_tensor_get_type` of
`ggml-org/llama.cpp`, src/llama-quant.cpp, as of its releases of 2025, and the sizes of its
tools/quantize/README.md, which the tests hold this to; --pure and --tensor-type are not asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from allocsim.errors import ConfigError
from allocsim.estimate.blocks import BLOCKS
from allocsim.estimate.shapes import Shape, Sizes

__all__ = ["BASES", "kind_of"]

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
"""By the name of a recipe, the type that most of its tensors have."""

_PLAIN = ("F32", "F16", "BF16")
_KEPT = ("norm", "bias", "router", "position")
_LOW = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M")
_TWO_BITS = ("IQ2_S", "IQ2_M")
_FALLBACK = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0", "TQ1_0": "Q4_0", "TQ2_0": "Q4_0"}
"""What a tensor takes whose rows the blocks of its type do not divide; of the others IQ4_NL."""
_Q5_OUTPUTS = ("Q2_K", "IQ3_XS", "IQ3_XXS", "Q3_K_S", "Q3_K_M", "IQ4_NL", "Q4_K_S", "Q4_K_M",
               "IQ3_S", "IQ3_M", "IQ4_XS")  # fmt: skip
"""Recipes under which eight experts' attention output takes Q5_K."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """One tensor that a recipe is asked about.  base: what most tensors take.  layer: its own."""

    recipe: str
    base: str
    shape: Shape
    sizes: Sizes
    has_imatrix: bool

    @property
    def layer(self) -> int:
        """Its layer, 0 outside of them."""
        return self.shape.layer or 0

    @property
    def is_early(self) -> bool:
        """Whether it lies in the first eighth of the layers."""
        return self.layer < self.sizes.layers // 8

    @property
    def takes_more(self) -> bool:
        """The first and the last eighth of the layers, and every third between."""
        layers = self.sizes.layers
        is_late = self.layer >= 7 * layers // 8
        return self.is_early or is_late or (self.layer - layers // 8) % 3 == 2

    @property
    def is_shared(self) -> bool:
        """Whether four heads or more share one head's keys and values."""
        return self.sizes.heads // self.sizes.kv_heads >= 4

    @property
    def has_8_experts(self) -> bool:
        """As Mixtral 8x7B, which the recipes treat apart."""
        return self.sizes.experts == 8


def kind_of(recipe: str, shape: Shape, sizes: Sizes, *, has_imatrix: bool = False) -> str:
    """ggml's type of one tensor under a recipe.

    has_imatrix: whether the file was made with an importance matrix, which moves a few tensors.
    Raises ConfigError for a recipe that is not known.
    """
    base = BASES.get(recipe)
    if base is None:
        raise ConfigError(f"{recipe[:40]!r} is no GGUF type; expected one of {', '.join(BASES)}")
    if shape.role in _KEPT:
        return "F32"
    if recipe in _PLAIN:
        return base
    kind = _chosen(_Asked(recipe, base, shape, sizes, has_imatrix))
    if shape.dims[-1] % BLOCKS[kind].weights:
        kind = _FALLBACK.get(kind, "IQ4_NL")
    return "F16" if shape.dims[-1] % BLOCKS[kind].weights else kind


def _chosen(asked: _Asked) -> str:
    role = asked.shape.role
    if role == "token_embd" and asked.sizes.tied:
        role = "output"
    rules = _LOW_RULES if asked.recipe in _LOW else _RULES
    rule = rules.get(role)
    return asked.base if rule is None else rule(asked)


def _output(asked: _Asked) -> str:
    if asked.base == "Q8_0" or asked.shape.dims[-1] % BLOCKS[asked.base].weights:
        return "Q8_0"
    is_low = asked.recipe in _LOW or asked.recipe == "IQ3_XXS"
    return "Q5_K" if is_low else "Q6_K"


def _embedding(asked: _Asked) -> str:
    if asked.recipe in (*_TWO_BITS, "IQ3_XXS"):
        return "IQ3_S"
    if asked.recipe in _LOW:
        return "Q2_K"
    return "Q4_K" if asked.recipe in ("TQ1_0", "TQ2_0") else asked.base


def _better(asked: _Asked) -> str:
    """What the recipes with fewer than three bits a weight raise a tensor to."""
    return "IQ3_S" if asked.recipe in _TWO_BITS else "Q2_K"


def _low_values(asked: _Asked) -> str:
    return "Q4_K" if asked.is_shared or asked.sizes.experts >= 4 else _better(asked)


def _low_keys(asked: _Asked) -> str:
    return "Q4_K" if asked.has_8_experts else asked.base


def _low_down(asked: _Asked) -> str:
    return _better(asked) if asked.is_early else asked.base


def _low_attention_output(asked: _Asked) -> str:
    if asked.has_8_experts:
        return "Q5_K"
    if asked.recipe in ("IQ1_S", "IQ1_M"):
        return "IQ2_XXS"
    return "IQ3_S" if asked.recipe in _TWO_BITS else asked.base


def _values(asked: _Asked) -> str:
    if asked.has_8_experts:
        return "Q8_0"
    layer, sizes = asked.layer, asked.sizes
    kinds = {
        "Q2_K": "Q3_K",
        "IQ3_XXS": "IQ3_S",
        "IQ3_M": "Q4_K",
        "Q3_K_M": "Q5_K" if layer < 2 else "Q4_K",
        "Q3_K_L": "Q5_K",
    }
    if asked.is_shared:
        kinds |= dict.fromkeys(("Q2_K", "Q2_K_S", "IQ3_XXS", "IQ3_XS", "IQ3_S"), "Q4_K")
        kinds |= dict.fromkeys(("IQ4_NL", "IQ4_XS"), "Q5_K")
    if asked.takes_more:
        kinds |= dict.fromkeys(("Q4_K_M", "Q5_K_M"), "Q6_K")
    if layer < 4:
        kinds["Q4_K_S"] = "Q5_K"
    kind = kinds.get(asked.recipe, asked.base)
    is_70b = sizes.layers == 80 and sizes.heads != sizes.kv_heads
    return "Q5_K" if is_70b and kind in ("Q3_K", "Q4_K") else kind


def _keys(asked: _Asked) -> str:
    return "Q8_0" if asked.has_8_experts else _queries(asked)


def _queries(asked: _Asked) -> str:
    return {"IQ3_XS": "IQ3_XXS", "IQ3_XXS": "IQ2_S"}.get(asked.recipe, asked.base)


def _fused(asked: _Asked) -> str:
    """Queries, keys and values in one."""
    kinds = {"Q4_K_M": "Q5_K", "Q5_K_M": "Q6_K"}
    kinds |= dict.fromkeys(("Q3_K_M", "Q3_K_L", "IQ3_M"), "Q4_K")
    return kinds.get(asked.recipe, asked.base)


def _down(asked: _Asked) -> str:
    is_first = asked.layer < asked.sizes.layers // 16
    kinds = {"Q2_K": "Q3_K", "Q3_K_M": "Q5_K" if is_first else "Q4_K", "Q3_K_L": "Q5_K"}
    if asked.takes_more:
        kinds |= dict.fromkeys(("Q4_K_M", "Q5_K_M"), "Q6_K")
    if asked.is_early or (asked.has_8_experts and asked.takes_more):
        kinds["IQ3_M"] = "Q4_K"
    if asked.is_early:
        kinds |= {"Q2_K_S": "Q4_K", "Q4_K_S": "Q5_K"}
    if not asked.has_imatrix:
        kinds["IQ3_XXS"] = "Q4_K" if asked.is_early else "Q3_K"
        kinds |= dict.fromkeys(("IQ4_NL", "IQ4_XS"), "Q5_K") if asked.is_early else {}
    elif asked.is_early:
        kinds |= {"Q4_0": "Q4_1", "Q5_0": "Q5_1"}
    return kinds.get(asked.recipe, asked.base)


def _attention_output(asked: _Asked) -> str:
    if asked.has_8_experts:
        return "Q5_K" if asked.recipe in _Q5_OUTPUTS else asked.base
    kinds = {"Q2_K": "Q3_K", "IQ3_XXS": "IQ3_S", "Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K"}
    return {**kinds, "IQ3_M": "Q4_K"}.get(asked.recipe, asked.base)


def _gate_and_up(asked: _Asked) -> str:
    layers = asked.sizes.layers
    is_middle = layers // 8 <= asked.layer < 7 * layers // 8
    return "IQ3_XXS" if asked.recipe == "IQ3_XS" and is_middle else asked.base


_Rules = dict[str, Callable[[_Asked], str]]

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
