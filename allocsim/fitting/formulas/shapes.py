"""Tensors of a language model, from the sizes in its configuration.

Rule: each tensor of the published implementation is listed, so that the elements add up to the
model's parameters. A function for each family lists the tensors of one layer. Sources: the
modelling files of Hugging Face transformers and, for the roles, the tensor names of the GGUF format
(`ggml-org/ggml`, docs/gguf.md, "Standardized tensor names").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from allocsim.errors import ConfigError

__all__ = ["FAMILIES", "ModelSizes", "Shape", "parameters_of", "shapes_of", "sizes_of"]

_MOST = 1 << 31
_DEEPEST = 4096


@dataclass(frozen=True, slots=True)
class Shape:
    """Role and dimensions of one tensor.

    role: purpose, by the name that GGUF has for it: "attn_q", "ffn_down", "token_embd", "output"
        and so on; "norm", "bias", "router" and "position" are never quantised.
    dims: sizes of the dimensions, rows first, as in PyTorch.
    layer: index of its layer, or None outside the layers.
    """

    role: str
    dims: tuple[int, ...]
    layer: int | None = None

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.dims)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSizes:
    """Sizes of a language model.

    family: model_type of the configuration, or architecture of a GGUF file.
    width: hidden size.
    inner: width of the MLP.
    head: width of one attention head.
    tied: True if the output layer shares the embedding's weights.
    positions: learned positions, or 0.
    experts: experts per layer, or 0.
    window: tokens that a sliding window covers, or 0.
    windowed: number of layers with a sliding window.
    attention_bias: True if queries, keys and values have biases.
    inner_bias: True if the MLP has biases.
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
        """Elements of one token's keys in one layer."""
        return self.kv_heads * self.head


def sizes_of(config: Mapping[str, Any]) -> ModelSizes:
    """Return the sizes in a Hugging Face configuration.

    Raises ConfigError for an unsupported family, and for missing or invalid sizes.
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
    return ModelSizes(
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
    """Return the tokens of the sliding window, and the number of layers that have it.

    In Gemma 2 half of the layers have a window, in other families all.
    """
    window = config.get("sliding_window")
    if window is None or config.get("use_sliding_window") is False:
        return 0, 0
    tokens = _size(config, "sliding_window")
    if config["model_type"] == "qwen2":  # off unless the configuration turns it on
        return (tokens, layers) if config.get("use_sliding_window") else (0, 0)
    return tokens, (layers + 1) // 2 if config["model_type"] == "gemma2" else layers


def shapes_of(sizes: ModelSizes) -> tuple[Shape, ...]:
    """Return all tensors of the model, in order. A tied output layer is not a separate tensor."""
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
    """Return the total number of elements of the tensors."""
    return sum(shape.elements for shape in shapes)


_Rows = Iterator[tuple[str, tuple[int, ...]]]


def _attention(sizes: ModelSizes) -> _Rows:
    width, queries = sizes.width, sizes.heads * sizes.head
    outs = {"attn_q": queries, "attn_k": sizes.kv_width, "attn_v": sizes.kv_width}
    for role, out in outs.items():
        yield role, (out, width)
        if sizes.attention_bias:
            yield "bias", (out,)
    yield "attn_output", (width, queries)
    if sizes.attention_bias and sizes.family != "qwen2":
        yield "bias", (width,)


def _gated(sizes: ModelSizes) -> _Rows:
    outs = {"ffn_gate": (sizes.inner, sizes.width), "ffn_up": (sizes.inner, sizes.width)}
    for role, dims in {**outs, "ffn_down": (sizes.width, sizes.inner)}.items():
        yield role, dims
        if sizes.inner_bias:
            yield "bias", dims[:1]


def _norms(sizes: ModelSizes, count: int) -> _Rows:
    for _ in range(count):
        yield "norm", (sizes.width,)


def _llama(sizes: ModelSizes) -> _Rows:
    """Yield the tensors of a layer of Llama, Mistral or Qwen 2."""
    yield from _attention(sizes)
    yield from _gated(sizes)
    yield from _norms(sizes, 2)


def _gemma2(sizes: ModelSizes) -> _Rows:
    """Yield the tensors of a layer with norms before and after attention and MLP."""
    yield from _attention(sizes)
    yield from _gated(sizes)
    yield from _norms(sizes, 4)


def _phi3(sizes: ModelSizes) -> _Rows:
    """Yield the tensors of a layer with one matrix for attention inputs and one for gate and up."""
    queries = sizes.heads * sizes.head
    yield "attn_qkv", (queries + 2 * sizes.kv_width, sizes.width)
    yield "attn_output", (sizes.width, queries)
    yield "ffn_up", (2 * sizes.inner, sizes.width)
    yield "ffn_down", (sizes.width, sizes.inner)
    yield from _norms(sizes, 2)


def _mixtral(sizes: ModelSizes) -> _Rows:
    """Yield the tensors of a layer with a router and experts."""
    yield from _attention(sizes)
    yield "router", (sizes.experts, sizes.width)
    yield "ffn_gate", (sizes.experts, sizes.inner, sizes.width)
    yield "ffn_up", (sizes.experts, sizes.inner, sizes.width)
    yield "ffn_down", (sizes.experts, sizes.width, sizes.inner)
    yield from _norms(sizes, 2)


def _gpt2(sizes: ModelSizes) -> _Rows:
    """Yield the tensors of a layer where every matrix and norm has a bias."""
    width, inner = sizes.width, sizes.inner
    outs = {"attn_qkv": (3 * width, width), "attn_output": (width, width)}
    for role, dims in {**outs, "ffn_up": (inner, width), "ffn_down": (width, inner)}.items():
        yield role, dims
        yield "bias", dims[:1]
    for _ in range(2):
        yield "norm", (width,)
        yield "bias", (width,)


FAMILIES: dict[str, Callable[[ModelSizes], _Rows]] = {
    "llama": _llama,
    "mistral": _llama,
    "qwen2": _llama,
    "gemma2": _gemma2,
    "phi3": _phi3,
    "mixtral": _mixtral,
    "gpt2": _gpt2,
}
"""Function that yields the tensors of one layer, by model_type."""
