"""Input of the training formulas: a task's model dimensions, division over GPUs and precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

from allocsim.errors import ConfigError
from allocsim.fitting.formulas import (
    KNOWN_TYPES,
    DecoderSizes,
    ModelSizes,
    Shape,
    shapes_of,
    sizes_of,
    weights_of,
)
from allocsim.fitting.formulas.training import (
    BY_SEQUENCE,
    EAGER,
    WHOLE_SOFTMAX,
    ParallelLayout,
    Precision,
    Training,
    TransformerShape,
)
from allocsim.fitting.model import Configured, Model
from allocsim.fitting.parallel import precision_of
from allocsim.fitting.task import Task

_COPIED_IN_STEP = ("adamw", "adafactor")
"""Optimizers whose step temporarily allocates another copy of all parameters."""
_LOGITS, _CAST_LOGITS = 3, 2 + 4 + 4
"""Memory of the logits while the loss is computed.

The first number is for training without autocast: tensors as large as the logits. The second is for
autocast: bytes per logit, for logits in 16 bits, and their softmax and its gradient in 32 bits.
"""
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_SERVED_ALONE = ("gemma3n_text", "mllama_text_model", "nemotron_h")
"""Values of model_type with a formula for serving, but none for training."""
_PARALLEL = ("cohere", "cohere2", "phi")
"""Values of model_type whose attention and MLP run in parallel, on the same normalized input."""
_WITH_BIASES = ("gpt2", "phi", "starcoder2", "whisper")
"""Values of model_type whose MLP has no gate, and whose matrices and norms all have biases."""
_FOUR_NORMS = ("gemma2", "gemma3_text", "gemma4_text", "glm4")
_WHOLE_EVERY = 3
"""Period of ModernBERT's layers with full attention and no mask: layers 0, 3, 6 and so on."""
_NORMS = dict.fromkeys(_FOUR_NORMS, 4) | dict.fromkeys(_PARALLEL, 1)
"""Number of norms of hidden states in a layer, keyed by model_type; 2 for other types."""


def training_of(task: Task) -> Training:
    """Convert a task to the input of the training formulas; ConfigError if they do not cover it."""
    shape = shape_of(task.model)
    if task.reference:
        shape = without_dropout(shape)
    if task.checkpoint_layers:
        raise ConfigError("formulas checkpoint all layers or none; some of them need the program")
    if task.lora:
        shape = with_adapters(shape, task.model, task.lora, task.lora_targets)
    layout = ParallelLayout(
        data=task.ranks,
        zero=3 if task.parallel == "fsdp" else 0,
        recompute="full" if task.checkpointing else "none",
        flash=task.attention != "eager",
        seq=max(task.lengths, default=task.seq),
        micro_batch=task.sequences,
        micro_batches=task.accumulate,
    )
    practice = replace(EAGER, foreach=task.optimizer in _COPIED_IN_STEP)
    precision = _quantised(task) if task.quant else precision_of(task.dtype, task.optimizer)
    if task.reference:
        practice = replace(practice, pairs=WHOLE_SOFTMAX if task.whole_softmax else BY_SEQUENCE)
        if task.reference_dtype is not None:
            precision = replace(precision, reference=_BYTES[task.reference_dtype])
    if shape.encoder is not None:
        # The loss is computed in the type of the activations, but by autocast in 32 bits.
        casts = precision.compute < precision.weights
        logits = _CAST_LOGITS if casts else _LOGITS * precision.compute
        practice = replace(practice, casts=casts, logits=logits)
    return Training(task.model.name, shape, layout, precision, practice)


def without_dropout(shape: TransformerShape) -> TransformerShape:
    kinds = tuple(replace(kind, dropout=False) for kind in shape.kinds)
    return replace(shape, dropout=False, kinds=kinds)


def _quantised(task: Task) -> Precision:
    # bitsandbytes quantises the matrices of layers; peft converts the other weights to 32 bits, and
    # then activations have 32 bits, too.
    assert isinstance(task.model, Configured)
    sizes = sizes_of(task.model.config)
    stored = weights_of(
        shapes_of(sizes), task.quant, sizes, is_unconverted=lambda each: len(each.dims) != 2
    )
    tensors = stored.tensors
    whole = sum(each.size + each.scales if each.is_quantised else 2 * each.size for each in tensors)
    largest = max((each.shape.elements for each in tensors if each.is_quantised), default=0)
    return replace(precision_of("fp32", task.optimizer), quantised=(whole, 2 * largest))


def shape_of(model: Model) -> TransformerShape:
    """Return the dimensions of `model` for the training formulas; ConfigError without a formula."""
    kind = model.config["model_type"] if isinstance(model, Configured) else "function"
    if not isinstance(model, Configured) or kind not in KNOWN_TYPES:
        raise ConfigError(
            f"{model.name} ({kind}) is not described by the formulas of parallel training; "
            f"expected one of {', '.join(KNOWN_TYPES)}, or --parameters 7B"
        )
    try:
        sizes = sizes_of(model.config)
    except ConfigError as error:
        raise ConfigError(f"{model.name}: {error}") from None
    if sizes.family in _SERVED_ALONE:
        raise ConfigError(
            f"{model.name} is described by the formulas of serving, and not by those of training; "
            "use --parameters"
        )
    has_dropout = sizes.family == "gpt2" and bool(model.config.get("resid_pdrop", 0.1))
    return _whole_shape(sizes, has_dropout)


@lru_cache(maxsize=8)
def _whole_shape(sizes: ModelSizes, has_dropout: bool) -> TransformerShape:
    counts: dict[int | None, int] = {}
    for each in shapes_of(sizes):
        is_further = each.role not in ("token_embd", "output")
        counts[each.layer] = counts.get(each.layer, 0) + each.elements * is_further
    kinds, is_encoder = [], sizes.family == "modernbert"
    known: dict[tuple[Any, ...], TransformerShape] = {}
    for layer in range(sizes.layers):
        own = sizes.of_layer(layer)
        is_linear = sizes.linear is not None and layer in sizes.linear.layers
        is_masked = is_encoder and layer % _WHOLE_EVERY > 0
        crosses = sizes.attends_to_encoder(layer)
        has_experts = layer >= len(sizes.dense)
        alike = own, is_linear, is_masked, crosses, has_experts, counts[layer]
        if alike not in known:
            kind = replace(_shape(own, has_dropout), masked=is_masked, crosses=crosses)
            kind = replace(kind, linear=sizes.linear) if is_linear else kind
            known[alike] = replace(kind, others=counts[layer] - kind.layer(layer))
        kinds.append(known[alike])
    shape = replace(
        kinds[-1], crosses=False, heads=sizes.heads, kv_heads=sizes.kv_heads, inner=sizes.inner
    )
    is_mixed = sizes.whole is not None or sizes.linear is not None or sizes.encoder is not None
    if is_mixed or sizes.reusing or is_encoder:
        shape = replace(shape, kinds=tuple(kinds))
    usual = sizes.width * (1 + shape.has_biases + sizes.positions)
    return replace(shape, further=counts[None] - usual)


def _shape(sizes: ModelSizes, has_dropout: bool) -> TransformerShape:
    is_double = sizes.family == "gemma4_text" and sizes.experts > 0  # experts beside an MLP
    shared = {each.name: getattr(sizes, each.name) for each in fields(DecoderSizes)}
    return TransformerShape(
        **shared,
        is_tied=sizes.tied,
        is_gated=sizes.is_gated and sizes.family not in _WITH_BIASES,
        norms=_NORMS.get(sizes.family, 2) + (sizes.per_layer is not None) + 3 * is_double,
        has_biases=sizes.family in _WITH_BIASES,
        norms_at_once=sizes.family == "modernbert",
        views_values=sizes.family == "modernbert",
        query_bias=sizes.attention_bias,
        dropout=has_dropout,
        dense_layers=len(sizes.dense),
        encoder=sizes.encoder,
    )


_ADAPTED = {
    **{"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output"},
    **{"gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down"},
    **{"qkv_proj": "attn_qkv", "gate_up_proj": "ffn_up", "c_attn": "attn_qkv", "c_fc": "ffn_up"},
    **{"fc1": "ffn_up", "fc2": "ffn_down", "dense": "attn_output"},
    **{"q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output", "wi": "ffn_up"},
    **{"wi_0": "ffn_gate", "wi_1": "ffn_up", "wo": "ffn_down", "out_proj": "attn_output"},
}
"""Dictionary from a linear module's name in transformers to `Shape.role` of its weight."""
_OTHER_LINEAR = ("attn_linear_in", "attn_linear_out", "linear_gate", "weight")
"""Roles of further weights, which have LoRA adapters only if the user names no modules."""
_OF_MEMORY = ("attn_k", "attn_v")
"""Roles of the weights of cross-attention whose input is the encoder's output."""
_FROZEN_EXPERTS = ("gemma4_text", "gpt_oss", "laguna", "llama4_text", "qwen3_5_moe_text")
"""Values of model_type whose experts get no adapters from peft: they are no linear modules."""


def with_adapters(
    shape: TransformerShape, model: Model, rank: int, targets: Sequence[str] = ()
) -> TransformerShape:
    """Return `shape`, a model's dimensions for the training formulas, with LoRA adapters added.

    model: the model of these dimensions.
    rank: rank of the adapters.
    targets: names of the modules with adapters; empty for all linear modules of a layer.
    """
    unknown = sorted(set(targets) - set(_ADAPTED))
    if unknown:
        raise ConfigError(f"{unknown[0]!r} is no linear module that the formulas know")
    assert isinstance(model, Configured)
    roles = {_ADAPTED[name] for name in targets} or {*_ADAPTED.values(), *_OTHER_LINEAR}
    sizes = sizes_of(model.config)
    found: dict[int, list[Shape]] = {layer: [] for layer in range(sizes.layers)}
    for each in shapes_of(sizes):
        if each.layer is not None and each.role in roles:
            found[each.layer].append(each)

    def adapted(shape: TransformerShape, layer: int) -> TransformerShape:
        matrices = [each.dims[::-1] for each in found[layer] if len(each.dims) == 2]
        # Experts have three dimensions.
        has_experts = len(matrices) < len(found[layer]) and sizes.family not in _FROZEN_EXPERTS
        of_memory = [each for each in found[layer] if each.role in _OF_MEMORY]
        return replace(
            shape,
            lora=rank,
            adapted=tuple(matrices),
            adapts_experts=has_experts,
            crossing_adapters=len(of_memory) // 2 * shape.crosses,
        )

    kinds = tuple(adapted(kind, layer) for layer, kind in enumerate(shape.kinds))
    return replace(adapted(shape, sizes.layers - 1), kinds=kinds)
