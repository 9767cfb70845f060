"""Tensors of a language model, from its sizes.

Rule: each tensor of the published implementation is listed, so that the elements add up to the
model's parameters. A function for each family lists the tensors of one layer. Sources: the
modelling files of Hugging Face transformers and, for the roles, the tensor names of the GGUF format
(`ggml-org/ggml`, docs/gguf.md, "Standardized tensor names").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from allocsim.fitting.formulas.sizes import ModelSizes


@dataclass(frozen=True, slots=True)
class Shape:
    """Role and dimensions of one tensor.

    role: purpose, by the name that GGUF has for it: "attn_q", "ffn_down", "token_embd", "output"
        and so on; "norm", "bias", "router" and "position" are never quantised.
    dims: sizes of the dimensions, rows first, as in PyTorch; the experts of a layer are one tensor
        of three dimensions.
    layer: index of its layer, or None outside the layers.
    """

    role: str
    dims: tuple[int, ...]
    layer: int | None = None

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.dims)


def shapes_of(sizes: ModelSizes) -> tuple[Shape, ...]:
    """Return all tensors of the model, in order. A tied output layer is not a separate tensor."""
    block = FAMILIES[sizes.family]
    shapes = [Shape("token_embd", (sizes.vocabulary, sizes.width))]
    if sizes.positions:
        shapes.append(Shape("position", (sizes.positions, sizes.width)))
    for layer in range(sizes.layers):
        shapes += (Shape(role, dims, layer) for role, dims in block(sizes, layer))
    shapes.append(Shape("norm", (sizes.width,)))
    if sizes.family in ("gpt2", "phi", "starcoder2"):
        shapes.append(Shape("bias", (sizes.width,)))
    if not sizes.tied:
        shapes.append(Shape("output", (sizes.vocabulary, sizes.width)))
    if sizes.family == "phi":
        shapes.append(Shape("bias", (sizes.vocabulary,)))
    return tuple(shapes)


def parameters_of(shapes: Iterable[Shape]) -> int:
    """Return the total number of elements of the tensors."""
    return sum(shape.elements for shape in shapes)


_Rows = Iterator[tuple[str, tuple[int, ...]]]


def _with_bias(role: str, dims: tuple[int, ...]) -> _Rows:
    """Yield (role, shape) of a weight matrix and of its bias.

    dims: (outputs, inputs), or (experts, outputs, inputs) for all experts of a layer.
    """
    yield role, dims
    yield "bias", dims[:-1]


def _attention(sizes: ModelSizes) -> _Rows:
    width, queries = sizes.width, sizes.heads * sizes.head
    outs = {"attn_q": queries, "attn_k": sizes.kv_width, "attn_v": sizes.kv_width}
    for role, out in outs.items():
        yield role, (out, width)
        if sizes.attention_bias:
            yield "bias", (out,)
    yield "attn_output", (width, queries)
    if sizes.attention_bias and sizes.family not in ("glm", "glm4", "qwen2"):
        yield "bias", (width,)


def _latent_attention(sizes: ModelSizes) -> _Rows:
    """Yield compressed queries, keys and values, and the matrices that expand them to heads."""
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


def _linear_attention(sizes: ModelSizes) -> _Rows:
    """Yield inputs, gates, decay, convolution and output of Gated DeltaNet."""
    linear = sizes.linear
    assert linear is not None
    values = linear.value_heads * linear.value
    yield "attn_linear_in", (linear.mixed, sizes.width)
    yield "attn_linear_in", (values, sizes.width)
    yield "linear_gate", (linear.value_heads, sizes.width)
    yield "linear_gate", (linear.value_heads, sizes.width)
    yield "linear_gate", (linear.mixed, linear.kernel)
    yield "norm", (linear.value_heads,)
    yield "norm", (linear.value_heads,)
    yield "norm", (linear.value,)
    yield "attn_linear_out", (sizes.width, values)


def _gated(sizes: ModelSizes, inner: int = 0) -> _Rows:
    """Yield the tensors of a gated MLP of width `inner`; 0 means the model's width."""
    inner = inner or sizes.inner
    outs = {"ffn_gate": (inner, sizes.width), "ffn_up": (inner, sizes.width)}
    for role, dims in {**outs, "ffn_down": (sizes.width, inner)}.items():
        yield role, dims
        if sizes.inner_bias:
            yield "bias", dims[:1]


def _experts(sizes: ModelSizes, layer: int) -> _Rows:
    """Yield a router and experts, with a shared expert if there is one; or a dense layer's MLP."""
    if layer in sizes.dense:
        yield from _gated(sizes)
        return
    count, inner, width = sizes.experts, sizes.expert_inner, sizes.width
    yield "router", (count, width)
    yield "ffn_gate", (count, inner, width)
    yield "ffn_up", (count, inner, width)
    yield "ffn_down", (count, width, inner)
    if sizes.shared_inner:
        yield from _gated(sizes, sizes.shared_inner)


def _norms(sizes: ModelSizes, count: int) -> _Rows:
    for _ in range(count):
        yield "norm", (sizes.width,)


def _head_norms(sizes: ModelSizes) -> _Rows:
    """Yield the norms of a head's queries and keys."""
    yield "norm", (sizes.head,)
    yield "norm", (sizes.head,)


def _llama(sizes: ModelSizes, _: int) -> _Rows:
    """Yield the tensors of a layer of Llama, Mistral, Qwen 2, Gemma, Granite or SmolLM3."""
    yield from _attention(sizes)
    yield from _gated(sizes)
    yield from _norms(sizes, 2)


def _gemma2(sizes: ModelSizes, _: int) -> _Rows:
    """Yield the tensors of a layer with norms before and after attention and MLP."""
    yield from _attention(sizes)
    yield from _gated(sizes)
    yield from _norms(sizes, 4)


def _gemma3(sizes: ModelSizes, layer: int) -> _Rows:
    """Yield the tensors of a layer of Gemma 3: Gemma 2's, and norms of queries and keys."""
    yield from _gemma2(sizes, layer)
    yield from _head_norms(sizes)


def _olmo2(sizes: ModelSizes, layer: int) -> _Rows:
    """Yield the tensors of a layer with norms over all heads' queries and keys."""
    yield from _llama(sizes, layer)
    yield "norm", (sizes.heads * sizes.head,)
    yield "norm", (sizes.kv_width,)


def _qwen3(sizes: ModelSizes, layer: int) -> _Rows:
    yield from _llama(sizes, layer)
    yield from _head_norms(sizes)


def _qwen3_moe(sizes: ModelSizes, layer: int) -> _Rows:
    yield from _mixtral(sizes, layer)
    yield from _head_norms(sizes)


def _qwen3_5(sizes: ModelSizes, layer: int) -> _Rows:
    """Yield the tensors of a layer with linear attention, or with gated attention to all tokens."""
    if sizes.linear is not None and layer in sizes.linear.layers:
        yield from _linear_attention(sizes)
    else:
        for role, dims in _attention(sizes):
            yield role, (2 * dims[0], dims[1]) if role == "attn_q" else dims  # with a gate
        yield from _head_norms(sizes)
    if sizes.experts:
        yield from _experts(sizes, layer)
        yield "router", (1, sizes.width)  # gate of the shared expert
    else:
        yield from _gated(sizes)
    yield from _norms(sizes, 2)


def _phi3(sizes: ModelSizes, _: int) -> _Rows:
    """Yield the tensors of a layer with one matrix for attention inputs and one for gate and up."""
    queries = sizes.heads * sizes.head
    yield "attn_qkv", (queries + 2 * sizes.kv_width, sizes.width)
    yield "attn_output", (sizes.width, queries)
    yield from _gate_in_up(sizes)
    yield from _norms(sizes, 2)


def _gate_in_up(sizes: ModelSizes) -> _Rows:
    """Yield the tensors of a gated MLP that has gate and up projection in one matrix."""
    yield "ffn_up", (2 * sizes.inner, sizes.width)
    yield "ffn_down", (sizes.width, sizes.inner)


def _glm(sizes: ModelSizes, _: int) -> _Rows:
    yield from _attention(sizes)
    yield from _gate_in_up(sizes)
    yield from _norms(sizes, 4 if sizes.family == "glm4" else 2)


def _mixtral(sizes: ModelSizes, layer: int) -> _Rows:
    """Yield the tensors of a layer with a router and experts."""
    yield from _attention(sizes)
    yield from _experts(sizes, layer)
    yield from _norms(sizes, 2)


def _deepseek(sizes: ModelSizes, layer: int) -> _Rows:
    """Yield the tensors of a layer with latent attention and shared experts.

    From DeepSeek-V3 on, a bias corrects the router's scores.
    """
    yield from _latent_attention(sizes)
    yield from _experts(sizes, layer)
    if sizes.family != "deepseek_v2" and layer not in sizes.dense:
        yield "router", (sizes.experts,)
    yield from _norms(sizes, 2)


def _gpt_oss(sizes: ModelSizes, _: int) -> _Rows:
    """Yield the tensors of a layer that has attention sinks, and experts with biases."""
    yield from _attention(sizes)
    yield "bias", (sizes.heads,)
    count, inner, width = sizes.experts, sizes.expert_inner, sizes.width
    yield from _with_bias("router", (count, width))
    yield from _with_bias("ffn_up", (count, 2 * inner, width))
    yield from _with_bias("ffn_down", (count, width, inner))
    yield from _norms(sizes, 2)


def _gpt2(sizes: ModelSizes, _: int) -> _Rows:
    """Yield the tensors of a layer where every matrix and norm has a bias."""
    width = sizes.width
    yield from _with_bias("attn_qkv", (3 * width, width))
    yield from _with_bias("attn_output", (width, width))
    yield from _plain_mlp(sizes, norms=2)


def _plain_mlp(sizes: ModelSizes, norms: int) -> _Rows:
    """Yield the tensors of an MLP without a gate, and of `norms` layer norms, all with biases."""
    yield from _with_bias("ffn_up", (sizes.inner, sizes.width))
    yield from _with_bias("ffn_down", (sizes.width, sizes.inner))
    for _ in range(norms):
        yield "norm", (sizes.width,)
        yield "bias", (sizes.width,)


def _starcoder2(sizes: ModelSizes, _: int) -> _Rows:
    """Yield the tensors of a layer of StarCoder2, or of Phi-2, which has one norm."""
    width, queries = sizes.width, sizes.heads * sizes.head
    yield from _with_bias("attn_q", (queries, width))
    yield from _with_bias("attn_k", (sizes.kv_width, width))
    yield from _with_bias("attn_v", (sizes.kv_width, width))
    yield from _with_bias("attn_output", (width, queries))
    yield from _plain_mlp(sizes, norms=1 if sizes.family == "phi" else 2)


FAMILIES: dict[str, Callable[[ModelSizes, int], _Rows]] = {
    **dict.fromkeys(("gemma", "granite", "llama", "mistral", "qwen2", "smollm3"), _llama),
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    **dict.fromkeys(("olmo2", "olmo3"), _olmo2),
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    **dict.fromkeys(("qwen3_5_moe_text", "qwen3_5_text"), _qwen3_5),
    "phi3": _phi3,
    **dict.fromkeys(("glm", "glm4"), _glm),
    **dict.fromkeys(("llama4_text", "mixtral"), _mixtral),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "kimi_k2"), _deepseek),
    "gpt_oss": _gpt_oss,
    "gpt2": _gpt2,
    **dict.fromkeys(("phi", "starcoder2"), _starcoder2),
}
"""Function that yields the tensors of one layer, given its number, by model_type."""
