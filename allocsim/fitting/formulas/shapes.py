"""Shapes of all tensors of a language model, computed from its sizes, such as the hidden size.

The numbers of elements add up to the model's parameters.  For each model_type, a function lists the
tensors of a layer; the module is long because it has all these functions.
"""

# Sources: the modelling files of Hugging Face transformers and, for the roles, the tensor names of
# the GGUF format (`ggml-org/ggml`, docs/gguf.md, "Standardized tensor names").

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from allocsim.fitting.formulas.sizes import ModelSizes

_STREAMS, _LAUREL = 4, 64
"""Gemma 3n's hidden states per token (AltUp), and the rank of its learned residual (LAuReL)."""
_SOUND_KERNEL = 3
"""Width of the kernel of Whisper's convolutions, in frames of sound."""
_IMAGE_TOKENS = 8
"""Number of rows in the embedding of Llama 3.2 Vision in addition to those of the vocabulary."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Role and dimensions of one tensor of a model.

    role: purpose, as GGUF names it, such as "attn_q"; tensors with the role "norm", "bias",
        "router" or "position" are never quantised.
    dims: dimensions as in PyTorch; all experts of a layer are one tensor of three dimensions.
    layer: index of the tensor's layer; None for a tensor outside the layers.
    """

    role: str
    dims: tuple[int, ...]
    layer: int | None = None

    @property
    def elements(self) -> int:
        return math.prod(self.dims)


def shapes_of(sizes: ModelSizes) -> tuple[Shape, ...]:
    """Return all tensors of a model, in order; a tied output layer has no tensor in the list."""
    block = FAMILIES[sizes.family]
    further = _IMAGE_TOKENS if sizes.family == "mllama_text_model" else 0
    shapes = [Shape("token_embd", (sizes.vocabulary + further, sizes.width))]
    if sizes.per_layer:
        vocabulary, each = sizes.per_layer
        wide = sizes.layers * each
        shapes.append(Shape("token_embd_layers", (vocabulary, wide)))
        shapes += (Shape("weight", (wide, sizes.width)), Shape("norm", (each,)))
    if sizes.family == "gemma3n_text":
        shapes += [Shape("weight", (sizes.width, sizes.width))] * (2 * _STREAMS - 2)
    if sizes.positions:
        shapes.append(Shape("position", (sizes.positions, sizes.width)))
    shapes += _beside_encoder(sizes)
    for layer in range(sizes.layers):
        rows = block(sizes.of_layer(layer), layer)
        shapes += (Shape(role, dims, layer) for role, dims in rows)
    shapes.append(Shape("norm", (sizes.width,)))
    if sizes.family == "modernbert":  # the embedding's norm, and the head of the masked tokens
        shapes += [Shape("norm", (sizes.width,))] * 2
        shapes += (Shape("weight", (sizes.width,) * 2), Shape("bias", (sizes.vocabulary,)))
    if sizes.family in ("gpt2", "phi", "starcoder2", "whisper"):
        shapes.append(Shape("bias", (sizes.width,)))
    if not sizes.tied:
        shapes.append(Shape("output", (sizes.vocabulary, sizes.width)))
    if sizes.family == "phi":
        shapes.append(Shape("bias", (sizes.vocabulary,)))
    return tuple(shapes)


def _beside_encoder(sizes: ModelSizes) -> Iterator[Shape]:
    if (encoder := sizes.encoder) is None:
        return
    width = sizes.width
    if encoder.channels:
        for channels in (encoder.channels, width):
            yield Shape("weight", (width, channels, _SOUND_KERNEL))
            yield Shape("bias", (width,))
        yield Shape("position", (encoder.tokens, width))
        yield Shape("bias", (width,))
    yield Shape("norm", (width,))
    if encoder.buckets:
        yield from [Shape("position", (encoder.buckets, sizes.heads))] * 2


def parameters_of(shapes: Iterable[Shape]) -> int:
    return sum(shape.elements for shape in shapes)


_Rows = Iterator[tuple[str, tuple[int, ...]]]
_Part = Callable[[ModelSizes, int], _Rows]
"""Function of a model's sizes and a layer index that yields pairs (role, dimensions) of tensors."""


def _layer(*parts: _Part) -> _Part:
    def rows(sizes: ModelSizes, layer: int) -> _Rows:
        for part in parts:
            yield from part(sizes, layer)

    return rows


def _with_bias(role: str, dims: tuple[int, ...]) -> _Rows:
    yield role, dims
    yield "bias", dims[:-1]


def _attention(sizes: ModelSizes, _: int) -> _Rows:
    width, queries = sizes.width, sizes.heads * sizes.head
    outs = {"attn_q": queries, "attn_k": sizes.kv_width, "attn_v": sizes.kv_width}
    for role, out in outs.items():
        if not out or (role == "attn_v" and sizes.shares_keys):
            continue
        yield role, (out, width)
        if sizes.attention_bias:
            yield "bias", (out,)
    yield "attn_output", (width, queries)
    if sizes.attention_bias and sizes.family not in ("glm", "glm4", "glm4_moe", "qwen2"):
        yield "bias", (width,)


def _unbiased_keys(sizes: ModelSizes, _: int) -> _Rows:
    square = (sizes.width, sizes.width)
    yield from _with_bias("attn_q", square)
    yield "attn_k", square
    yield from _with_bias("attn_v", square)
    yield from _with_bias("attn_output", square)


def _crossing(part: _Part) -> _Part:
    return lambda sizes, layer: part(sizes, layer) if sizes.attends_to_encoder(layer) else iter(())


def _fused_attention(sizes: ModelSizes, _: int) -> _Rows:
    queries = sizes.heads * sizes.head
    yield "attn_qkv", (queries + 2 * sizes.kv_width, sizes.width)
    yield "attn_output", (sizes.width, queries)


def _biased_attention(sizes: ModelSizes, _: int) -> _Rows:
    width, queries = sizes.width, sizes.heads * sizes.head
    yield from _with_bias("attn_q", (queries, width))
    yield from _with_bias("attn_k", (sizes.kv_width, width))
    yield from _with_bias("attn_v", (sizes.kv_width, width))
    yield from _with_bias("attn_output", (width, queries))


def _latent_attention(sizes: ModelSizes, _: int) -> _Rows:
    latent = sizes.latent
    assert latent is not None
    queries = sizes.heads * (sizes.head + latent.turning)
    if latent.query:
        yield "attn_q_a", (latent.query, sizes.width)
        yield "norm", (latent.query,)
        yield "attn_q_b", (queries, latent.query)
    else:
        yield "attn_q", (queries, sizes.width)
    yield "attn_kv_a", (latent.key_value + latent.turning, sizes.width)
    yield "norm", (latent.key_value,)
    yield "attn_kv_b", (sizes.heads * (sizes.head + latent.value), latent.key_value)
    yield "attn_output", (sizes.width, sizes.heads * latent.value)


def _indexer(sizes: ModelSizes, _: int) -> _Rows:
    assert sizes.indexer is not None
    assert sizes.latent is not None
    heads, head = sizes.indexer
    yield "indexer", (heads * head, sizes.latent.query)
    yield "indexer", (head, sizes.width)
    yield "norm", (head,)
    yield "bias", (head,)
    yield "indexer", (heads, sizes.width)


def _linear_attention(sizes: ModelSizes) -> _Rows:
    linear = sizes.linear
    assert linear is not None
    values = linear.value_heads * linear.value
    yield "attn_linear_in", (linear.mixed, sizes.width)
    yield "attn_linear_in", (values, sizes.width)
    yield "linear_gate", (linear.value_heads, sizes.width)
    yield "linear_gate", (linear.value_heads, sizes.width)
    yield "linear_kernel", (linear.mixed, linear.kernel)
    yield "norm", (linear.value_heads,)
    yield "norm", (linear.value_heads,)
    yield "norm", (linear.value,)
    yield "attn_linear_out", (sizes.width, values)


def _mamba(sizes: ModelSizes) -> _Rows:
    linear = sizes.linear
    assert linear is not None
    heads, values = linear.value_heads, linear.value_heads * linear.value
    yield "attn_linear_in", (values + linear.mixed + heads, sizes.width)
    yield "linear_kernel", (linear.mixed, linear.kernel)
    yield "bias", (linear.mixed,)
    yield from [("norm", (heads,))] * 3
    yield "norm", (values,)
    yield "attn_linear_out", (sizes.width, values)


def _plain_experts(sizes: ModelSizes, layer: int) -> _Rows:
    width, inner = sizes.width, sizes.inner
    if sizes.experts:
        each, inner = sizes.expert_width or width, sizes.shared_inner
        yield "router", (sizes.experts, width)
        yield from _score_correction(sizes, layer)
        yield "ffn_up", (sizes.experts, sizes.expert_inner, each)
        yield "ffn_down", (sizes.experts, each, sizes.expert_inner)
        if sizes.expert_width:
            yield "weight", (each, width)
            yield "weight", (width, each)
    yield "ffn_up", (inner, width)
    yield "ffn_down", (width, inner)


def _one_part(sizes: ModelSizes, layer: int) -> _Rows:
    assert sizes.linear is not None
    if layer in sizes.linear.layers:
        yield from _mamba(sizes)
    else:
        yield from (_plain_experts if layer in sizes.bare else _attention)(sizes, layer)


def _linear_or_gated_attention(sizes: ModelSizes, layer: int) -> _Rows:
    if sizes.linear is not None and layer in sizes.linear.layers:
        yield from _linear_attention(sizes)
        return
    for role, dims in _attention(sizes, layer):
        yield role, (2 * dims[0], dims[1]) if role == "attn_q" else dims  # with a gate
    yield from _head_norms(sizes, layer)


def _gated(sizes: ModelSizes, _: int) -> _Rows:
    yield from _gated_mlp(sizes, sizes.inner)


def _gated_mlp(sizes: ModelSizes, inner: int) -> _Rows:
    outs = {"ffn_gate": (inner, sizes.width)} if sizes.is_gated else {}
    outs["ffn_up"] = (inner, sizes.width)
    for role, dims in {**outs, "ffn_down": (sizes.width, inner)}.items():
        yield role, dims
        if sizes.inner_bias:
            yield "bias", dims[:1]


def _gate_in_up(sizes: ModelSizes, _: int) -> _Rows:
    yield "ffn_up", (2 * sizes.inner, sizes.width)
    yield "ffn_down", (sizes.width, sizes.inner)


def _plain_mlp(sizes: ModelSizes, _: int) -> _Rows:
    yield from _with_bias("ffn_up", (sizes.inner, sizes.width))
    yield from _with_bias("ffn_down", (sizes.width, sizes.inner))


def _experts(sizes: ModelSizes, layer: int) -> _Rows:
    if layer in sizes.dense:
        yield from _gated(sizes, layer)
        return
    count, inner, width = sizes.experts, sizes.expert_inner, sizes.width
    yield "router", (count, width)
    yield "ffn_gate", (count, inner, width)
    yield "ffn_up", (count, inner, width)
    yield "ffn_down", (count, width, inner)
    if sizes.shared_inner:
        yield from _gated_mlp(sizes, sizes.shared_inner)


def _biased_experts(sizes: ModelSizes, _: int) -> _Rows:
    count, inner, width = sizes.experts, sizes.expert_inner, sizes.width
    yield from _with_bias("router", (count, width))
    yield from _with_bias("ffn_up", (count, 2 * inner, width))
    yield from _with_bias("ffn_down", (count, width, inner))


def _gated_shared_expert(sizes: ModelSizes, layer: int) -> _Rows:
    yield from _experts(sizes, layer)
    yield "router", (1, sizes.width)  # gate of the shared expert


def _score_correction(sizes: ModelSizes, layer: int) -> _Rows:
    if layer not in sizes.dense:
        yield "router", (sizes.experts,)


def _experts_beside_mlp(sizes: ModelSizes, layer: int) -> _Rows:
    if not sizes.experts:
        yield from _gated(sizes, layer)
        return
    yield from _experts(sizes, layer)
    yield "router", (sizes.width,)
    yield "router", (sizes.experts,)
    yield from _norms(3)(sizes, layer)


def _per_layer_embedding(sizes: ModelSizes, _: int) -> _Rows:
    if sizes.per_layer:
        _, each = sizes.per_layer
        yield "weight", (each, sizes.width)
        yield "weight", (sizes.width, each)
        yield "norm", (sizes.width,)


def _streams(sizes: ModelSizes, _: int) -> _Rows:
    # AltUp's coefficients and router, and LAuReL's matrices.
    width, n = sizes.width, _STREAMS
    yield from [("norm", (width,))] * 3
    for dims in ((n, n), (n * n, n), (n, width)):
        yield "router", dims
    yield "weight", (_LAUREL, width)
    yield "weight", (width, _LAUREL)


def _head_gates(sizes: ModelSizes, _: int) -> _Rows:
    yield "linear_gate", (sizes.heads, sizes.width)


def _sinks(sizes: ModelSizes, _: int) -> _Rows:
    yield "bias", (sizes.heads,)


def _norms(count: int) -> _Part:
    return lambda sizes, _: iter([("norm", (sizes.width,))] * count)


def _norms_but_first(sizes: ModelSizes, layer: int) -> _Rows:
    yield from _norms(2 if layer else 1)(sizes, layer)


def _biased_norms(count: int) -> _Part:
    return lambda sizes, _: iter([("norm", (sizes.width,)), ("bias", (sizes.width,))] * count)


def _head_norms(sizes: ModelSizes, _: int) -> _Rows:
    yield "norm", (sizes.head,)
    if sizes.kv_heads:
        yield "norm", (sizes.head,)


def _cross_norms(sizes: ModelSizes, layer: int) -> _Rows:
    # Every fifth layer attends to images, and has a gate for attention and one for its MLP.
    if layer % 5 == 3:
        yield from _head_norms(sizes, layer)
        yield from [("norm", (1,))] * 2


def _wide_norms(sizes: ModelSizes, _: int) -> _Rows:
    yield "norm", (sizes.heads * sizes.head,)
    yield "norm", (sizes.kv_width,)


def _chosen_norms(part: _Part) -> _Part:
    return lambda sizes, layer: part(sizes, layer) if sizes.query_norm else iter(())


def _gpt2_attention(sizes: ModelSizes, _: int) -> _Rows:
    yield from _with_bias("attn_qkv", (3 * sizes.width, sizes.width))
    yield from _with_bias("attn_output", (sizes.width, sizes.width))


_LLAMA = _layer(_attention, _gated, _norms(2))
_MIXTRAL = _layer(_attention, _experts, _norms(2))
_DEEPSEEK_V3 = _layer(_latent_attention, _experts, _score_correction, _norms(2))
FAMILIES: dict[str, _Part] = {
    **dict.fromkeys(
        ("cohere", "cohere2"),
        _layer(_attention, _gated, _norms(1), _chosen_norms(_wide_norms)),
    ),
    "glm4_moe": _layer(_MIXTRAL, _score_correction, _chosen_norms(_head_norms)),
    "minimax_m2": _layer(_MIXTRAL, _score_correction, _wide_norms),
    **dict.fromkeys(("gemma", "granite", "llama", "mistral", "qwen2", "smollm3"), _LLAMA),
    "gemma2": _layer(_attention, _gated, _norms(4)),
    "gemma3_text": _layer(_attention, _gated, _norms(4), _head_norms),
    "gemma3n_text": _layer(
        _attention, _gated, _norms(4), _head_norms, _per_layer_embedding, _streams
    ),
    "gemma4_text": _layer(
        _attention, _experts_beside_mlp, _norms(4), _head_norms, _per_layer_embedding
    ),
    "laguna": _layer(_MIXTRAL, _score_correction, _head_norms, _head_gates),
    **dict.fromkeys(("olmo2", "olmo3"), _layer(_LLAMA, _wide_norms)),
    "qwen3": _layer(_LLAMA, _head_norms),
    "qwen3_moe": _layer(_MIXTRAL, _head_norms),
    "qwen3_5_text": _layer(_linear_or_gated_attention, _gated, _norms(2)),
    **dict.fromkeys(
        ("qwen3_5_moe_text", "qwen3_next"),
        _layer(_linear_or_gated_attention, _gated_shared_expert, _norms(2)),
    ),
    "mllama_text_model": _layer(_LLAMA, _cross_norms),
    "nemotron_h": _layer(_one_part, _norms(1)),
    "modernbert": _layer(_fused_attention, _gate_in_up, _norms_but_first),
    "phi3": _layer(_fused_attention, _gate_in_up, _norms(2)),
    "glm": _layer(_attention, _gate_in_up, _norms(2)),
    "glm4": _layer(_attention, _gate_in_up, _norms(4)),
    **dict.fromkeys(("llama4_text", "mixtral"), _MIXTRAL),
    "deepseek_v2": _layer(_latent_attention, _experts, _norms(2)),
    **dict.fromkeys(("deepseek_v3", "kimi_k2"), _DEEPSEEK_V3),
    "deepseek_v32": _layer(_DEEPSEEK_V3, _indexer),
    "gpt_oss": _layer(_attention, _sinks, _biased_experts, _norms(2)),
    "gpt2": _layer(_gpt2_attention, _plain_mlp, _biased_norms(2)),
    "phi": _layer(_biased_attention, _plain_mlp, _biased_norms(1)),
    "starcoder2": _layer(_biased_attention, _plain_mlp, _biased_norms(2)),
    "t5": _layer(_LLAMA, _crossing(_layer(_attention, _norms(1)))),
    "whisper": _layer(
        *(_unbiased_keys, _plain_mlp, _biased_norms(2)),
        _crossing(_layer(_unbiased_keys, _biased_norms(1))),
    ),
}
"""Dictionary from a model_type to the function that yields the tensors of one layer."""
