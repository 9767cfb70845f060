"""The tensors of a language model, from the sizes that its configuration names.

Rule: one row for each tensor that the published implementation keeps, so that their numbers of
elements add up to the model's parameters; what a family does otherwise stands in its function.
Sources: the modelling files of Hugging Face transformers by family, and for the roles the tensor
names of the GGUF format (`ggml-org/ggml`, docs/gguf.md, "Standardized tensor names").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from allocsim.errors import ConfigError

__all__ = ["FAMILIES", "Shape", "Sizes", "parameters_of", "shapes_of", "sizes_of"]

_MOST = 1 << 31
_DEEPEST = 4096


@dataclass(frozen=True, slots=True)
class Shape:
    """One tensor.

    role: what it is for, as GGUF names it: "attn_q", "ffn_down", "token_embd", "output"; "norm",
    "bias", "router" and "position" stand for what no format quantises.
    dims: rows first, the dimension that a row runs along last, as PyTorch keeps them.
    layer: the block that has it, None outside of them.
    """

    role: str
    dims: tuple[int, ...]
    layer: int | None = None

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.dims)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What a configuration says of a model's sizes.

    head: the width of one attention head.  inner: of the feed-forward part.
    positions: learned positions, 0 without.  experts: of a mixture, 0 without.
    window, windowed: tokens that a layer with a sliding window looks back, and how many such
    layers there are.
    """

    family: str
    layers: int
    width: int
    inner: int
    heads: int
    kv_heads: int
    head: int
    vocabulary: int
    tied: bool
    positions: int = 0
    experts: int = 0
    window: int = 0
    windowed: int = 0
    attention_bias: bool = False
    inner_bias: bool = False

    @property
    def kv_width(self) -> int:
        """Numbers that one token's keys have in one layer."""
        return self.kv_heads * self.head


def sizes_of(config: Mapping[str, Any]) -> Sizes:
    """The sizes in a Hugging Face configuration.

    Raises ConfigError for a family without a function here, and sizes that are missing or none.
    """
    family = config.get("model_type")
    if family not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise ConfigError(f"model_type {family!r:.60} has no formula; expected one of {known}")
    width = _size(config, "hidden_size", "n_embd")
    heads = _size(config, "num_attention_heads", "n_head")
    kv_heads = _size(config, "num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise ConfigError(f"{kv_heads} key and value heads do not divide {heads} heads")
    layers = _size(config, "num_hidden_layers", "n_layer")
    if layers > _DEEPEST:
        raise ConfigError(f"{layers:,} layers; expected {_DEEPEST:,} or fewer")
    window, windowed = _window(config, layers)
    is_tied = config.get("tie_word_embeddings", family in ("gpt2", "gemma2"))
    return Sizes(
        family=str(family),
        layers=layers,
        width=width,
        inner=_size(
            config,
            "intermediate_size",
            "n_inner",
            default=4 * width if family == "gpt2" else None,
        ),
        heads=heads,
        kv_heads=kv_heads,
        head=_size(config, "head_dim", default=256 if family == "gemma2" else width // heads),
        vocabulary=_size(config, "vocab_size"),
        tied=bool(is_tied),
        positions=_size(config, "n_positions", default=1024) if family == "gpt2" else 0,
        experts=_size(config, "num_local_experts", default=8) if family == "mixtral" else 0,
        window=window,
        windowed=windowed,
        attention_bias=bool(config.get("attention_bias", family == "qwen2")),
        inner_bias=bool(config.get("mlp_bias", False)),
    )


def _size(config: Mapping[str, Any], *keys: str, default: int | None = None) -> int:
    for key in keys:
        value = config.get(key)
        if value is None:
            continue
        if type(value) is not int or not 0 < value < _MOST:
            raise ConfigError(f"{key} is {value!r:.60}; expected a whole number, 1 or more")
        return value
    if default is None or default < 1:
        raise ConfigError(f"the configuration has no {keys[0]}; expected a whole number")
    return default


def _window(config: Mapping[str, Any], layers: int) -> tuple[int, int]:
    """The sliding window, and the layers that have one: half of Gemma 2's, all of the others'."""
    window = config.get("sliding_window")
    if window is None or config.get("use_sliding_window") is False:
        return 0, 0
    tokens = _size(config, "sliding_window")
    if config["model_type"] == "qwen2":  # off where the configuration does not say otherwise
        return (tokens, layers) if config.get("use_sliding_window") else (0, 0)
    return tokens, (layers + 1) // 2 if config["model_type"] == "gemma2" else layers


def shapes_of(sizes: Sizes) -> tuple[Shape, ...]:
    """Every tensor of the model, in its order.  A head that shares the embedding's is none."""
    block = FAMILIES[sizes.family]
    shapes = [Shape("token_embd", (sizes.vocabulary, sizes.width))]
    if sizes.positions:
        shapes.append(Shape("position", (sizes.positions, sizes.width)))
    for layer in range(sizes.layers):
        shapes += (Shape(role, dims, layer) for role, dims in block(sizes))
    shapes.append(Shape("norm", (sizes.width,)))
    if sizes.family == "gpt2":
        shapes.append(Shape("bias", (sizes.width,)))
    if not sizes.tied:
        shapes.append(Shape("output", (sizes.vocabulary, sizes.width)))
    return tuple(shapes)


def parameters_of(shapes: Iterable[Shape]) -> int:
    """How many numbers the tensors hold together."""
    return sum(shape.elements for shape in shapes)


_Rows = Iterator[tuple[str, tuple[int, ...]]]


def _attention(sizes: Sizes) -> _Rows:
    width, queries = sizes.width, sizes.heads * sizes.head
    outs = {"attn_q": queries, "attn_k": sizes.kv_width, "attn_v": sizes.kv_width}
    for role, out in outs.items():
        yield role, (out, width)
        if sizes.attention_bias:
            yield "bias", (out,)
    yield "attn_output", (width, queries)
    if sizes.attention_bias and sizes.family != "qwen2":
        yield "bias", (width,)


def _gated(sizes: Sizes) -> _Rows:
    outs = {"ffn_gate": (sizes.inner, sizes.width), "ffn_up": (sizes.inner, sizes.width)}
    for role, dims in {**outs, "ffn_down": (sizes.width, sizes.inner)}.items():
        yield role, dims
        if sizes.inner_bias:
            yield "bias", dims[:1]


def _norms(sizes: Sizes, count: int) -> _Rows:
    for _ in range(count):
        yield "norm", (sizes.width,)


def _llama(sizes: Sizes) -> _Rows:
    """Llama, Mistral, Qwen 2: queries, keys and values apart, a gated feed-forward part."""
    yield from _attention(sizes)
    yield from _gated(sizes)
    yield from _norms(sizes, 2)


def _gemma2(sizes: Sizes) -> _Rows:
    """A norm before and after both halves of a layer."""
    yield from _attention(sizes)
    yield from _gated(sizes)
    yield from _norms(sizes, 4)


def _phi3(sizes: Sizes) -> _Rows:
    """Queries, keys and values in one matrix, gate and up in another."""
    queries = sizes.heads * sizes.head
    yield "attn_qkv", (queries + 2 * sizes.kv_width, sizes.width)
    yield "attn_output", (sizes.width, queries)
    yield "ffn_up", (2 * sizes.inner, sizes.width)
    yield "ffn_down", (sizes.width, sizes.inner)
    yield from _norms(sizes, 2)


def _mixtral(sizes: Sizes) -> _Rows:
    """Every expert is a feed-forward part, and a router chooses among them."""
    yield from _attention(sizes)
    yield "router", (sizes.experts, sizes.width)
    yield "ffn_gate", (sizes.experts, sizes.inner, sizes.width)
    yield "ffn_up", (sizes.experts, sizes.inner, sizes.width)
    yield "ffn_down", (sizes.experts, sizes.width, sizes.inner)
    yield from _norms(sizes, 2)


def _gpt2(sizes: Sizes) -> _Rows:
    """Every matrix and norm has a bias."""
    width, inner = sizes.width, sizes.inner
    outs = {"attn_qkv": (3 * width, width), "attn_output": (width, width)}
    for role, dims in {**outs, "ffn_up": (inner, width), "ffn_down": (width, inner)}.items():
        yield role, dims
        yield "bias", dims[:1]
    for _ in range(2):
        yield "norm", (width,)
        yield "bias", (width,)


FAMILIES: dict[str, Callable[[Sizes], _Rows]] = {
    "llama": _llama,
    "mistral": _llama,
    "qwen2": _llama,
    "gemma2": _gemma2,
    "phi3": _phi3,
    "mixtral": _mixtral,
    "gpt2": _gpt2,
}
"""By model_type, the tensors of one layer."""
