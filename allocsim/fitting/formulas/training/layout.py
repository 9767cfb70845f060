"""Sizes of a transformer for the training formulas, and the layout of its training over ranks.

A shape describes one decoder.  Its layers are equal, except that the first `dense_layers` layers
have no experts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from allocsim.errors import ConfigError
from allocsim.fitting.formulas.sizes import DecoderSizes, Encoder, Linear

_HEAD = 128
_KV_HEADS = 8
_VOCABULARY = 128256
_FEWEST_PARAMETERS, _MOST_PARAMETERS = 10**9, 10**13
_TIED_BELOW = 5 * 10**9
_INNER = 3.25
"""Ratio of the MLP's width to the hidden size; Llama-3 has 3.25 (405 B) and 3.5."""
_ASPECT = 112
"""Ratio of the hidden size to the number of layers; Llama-3 has 102 (70 B) and 130 (405 B)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerShape(DecoderSizes):
    """Dimensions of a whole decoder, with the properties that decide the memory of its training.

    If the layers differ, `kinds` has one shape per layer, whose fields on layers describe that one.

    is_tied: True if the output layer shares the embedding's weights.
    is_gated: True if the MLP has a gate (SwiGLU).
    norms: number of norms per layer.
    has_biases: True if linear layers and norms have biases.
    query_bias: True if only queries, keys and values have biases.
    dropout: True if dropout masks are saved after attention and after the MLP.
    dense_layers: number of layers without experts, which are assumed to come first.  In Llama 4
        they are spread over the model; this matters only with pipeline stages.
    others: parameters of one layer that no other field counts, such as norms of queries.
    lora: rank of LoRA adapters; 0 to train all parameters.
    adapted: (inputs, outputs) of each linear module of a layer that has a LoRA adapter.
    adapts_experts: True if experts have LoRA adapters, too.
    norms_at_once: True if one kernel computes a norm, so no 32-bit copy is saved for backward.
    views_values: True if a layer's values are a view of a tensor with its queries and keys.
    masked: True if fused attention saves an attention mask for backward, with `seq` values per
        token in the type of activations.
    further: parameters outside the layers that no other field counts, such as more embeddings.
    linear: sizes of linear attention, if this layer has it in place of attention; else None.
    encoder: encoder of the model; None for a model without an encoder.
    crosses: True if the layer also attends to the encoder's output.
    crossing_adapters: number of the layer's LoRA adapters whose input is the encoder's output.
    kinds: one shape per layer, if layers differ in more than having experts; else empty.
    """

    is_tied: bool = False
    is_gated: bool = True
    norms: int = 2
    has_biases: bool = False
    query_bias: bool = False
    dropout: bool = False
    dense_layers: int = 0
    others: int = 0
    lora: int = 0
    adapted: tuple[tuple[int, int], ...] = ()
    adapts_experts: bool = False
    norms_at_once: bool = False
    views_values: bool = False
    masked: bool = False
    further: int = 0
    linear: Linear | None = None
    encoder: Encoder | None = None
    crosses: bool = False
    crossing_adapters: int = 0
    kinds: tuple[TransformerShape, ...] = ()

    def of_layer(self, layer: int) -> TransformerShape:
        """Return the sizes of a layer, numbered from 0."""
        return self.kinds[layer] if self.kinds else self

    @property
    def adapters(self) -> int:
        """Number of parameters in all LoRA adapters of a layer."""
        # An expert's gate and up projection are one tensor, with one adapter.
        of_experts = self.experts * (2 * self.width + 3 * self.expert_inner) * self.adapts_experts
        return self.lora * (sum(map(sum, self.adapted)) + of_experts)

    def has_experts(self, layer: int) -> bool:
        return bool(self.experts) and layer >= self.dense_layers

    @property
    def attention(self) -> int:
        """Number of attention parameters in a layer that are divided over tensor parallel ranks."""
        queries = self.heads * self.head
        if (latent := self.latent) is not None:
            up = (latent.query or self.width) * self.heads * (self.head + latent.turning)
            up += latent.key_value * self.heads * (self.head + latent.value)
            return up + self.heads * latent.value * self.width
        if (linear := self.linear) is not None:
            return (linear.mixed + 2 * linear.value_heads * linear.value) * self.width
        biases = (queries + 2 * self.kv_width) * (self.has_biases or self.query_bias)
        return 2 * queries * self.width + 2 * self.kv_width * self.width + biases

    @property
    def mlp(self) -> int:
        """Number of MLP parameters in a layer without experts, before tensor parallel division."""
        return (2 + self.is_gated) * self.width * self.inner + self.inner * self.has_biases

    @property
    def expert(self) -> int:
        return (2 + self.is_gated) * self.width * self.expert_inner

    @property
    def shared(self) -> int:
        """Number of parameters in a layer's shared experts, before tensor parallel division."""
        return (2 + self.is_gated) * self.width * self.shared_inner

    def whole(self, layer: int) -> int:
        """Return the number of parameters in a layer that each tensor parallel rank has in full."""
        count = self.norms * self.width * (1 + self.has_biases) + self.others
        count += 2 * self.width * self.has_biases
        if (latent := self.latent) is not None:
            count += self.width * (latent.query + latent.key_value + latent.turning)
            count += latent.query + latent.key_value
        return count + self.width * self.experts * self.has_experts(layer)

    def layer(self, layer: int) -> int:
        inside = self.mlp
        if self.has_experts(layer):
            inside = self.experts * self.expert + self.shared
        return self.attention + inside + self.whole(layer)

    @property
    def embedding(self) -> int:
        """Number of parameters of the token embedding; the output layer has as many."""
        return self.vocabulary * self.width

    @property
    def parameters(self) -> int:
        count = sum(self.of_layer(layer).layer(layer) for layer in range(self.layers))
        count += self.further + self.embedding * (1 if self.is_tied else 2)
        count += self.positions * self.width
        return count + self.width * (1 + self.has_biases)


def shape_for(parameters: int) -> TransformerShape:
    """Return a shape with about `parameters` parameters, and the proportions of Llama 3."""
    if not _FEWEST_PARAMETERS <= parameters <= _MOST_PARAMETERS:
        raise ConfigError(
            f"{parameters:,} parameters have no usual shape; expected 1 B to 10,000 B, or a model"
        )
    # A layer has about 12 x width^2 parameters, and the width is _ASPECT times the layers.
    deep = (parameters / (12 * _ASPECT**2)) ** (1 / 3)
    step = 16 if deep >= 40 else 4
    layers = max(round(deep / step), 1) * step
    shapes = (_shape(parameters, layers, width) for width in range(1024, 1 << 16, 1024))
    return min(shapes, key=lambda shape: abs(shape.inner / shape.width - _INNER))


def _shape(parameters: int, layers: int, width: int) -> TransformerShape:
    empty = TransformerShape(
        layers=layers,
        width=width,
        heads=width // _HEAD,
        kv_heads=_KV_HEADS,
        head=_HEAD,
        inner=0,
        vocabulary=_VOCABULARY,
        is_tied=parameters < _TIED_BELOW,
    )
    inner = (parameters - empty.parameters) / (3 * width * layers)
    return replace(empty, inner=max(round(inner / 64), 1) * 64)


RECOMPUTE = ("none", "selective", "ops", "full")
"""Kinds of activation checkpointing: activations that are recomputed instead of saved.

none: none are recomputed.
selective: the core of attention, with its scores, is recomputed, as by Megatron's "selective".
ops: all activations are recomputed, except outputs of attention and of every second matrix product,
    as by torchtitan's "selective".
full: each layer is recomputed from its input.
"""
_MOST = 1 << 20
_STAGES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelLayout:
    """Division of a training run over ranks, and its micro-batches.

    tensor, pipeline, data, context, expert: degree of each kind of parallelism (number of ranks in
        a group).  An expert-parallel group consists of data and context parallel ranks.  Each
        expert is also divided by tensor parallelism.
    chunks: number of model chunks per pipeline stage; more than 1 for interleaved stages.
    zero: stage of ZeRO, 0 to 3; 1 is Megatron's distributed optimizer, 3 is FSDP.
    sequence_parallel: True if the activations of norms and dropout are also divided over tensor
        parallel ranks.
    recompute: kind of activation checkpointing, one of `RECOMPUTE`.
    flash: True for fused attention, which saves no attention scores.
    seq: number of tokens in a sequence.
    micro_batch: number of sequences in a micro-batch.
    micro_batches: number of micro-batches per training step.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    context: int = 1
    expert: int = 1
    chunks: int = 1
    zero: int = 0
    sequence_parallel: bool = True
    recompute: str = "none"
    flash: bool = True
    seq: int = 4096
    micro_batch: int = 1
    micro_batches: int = _MOST

    def __post_init__(self) -> None:
        for name in ("tensor", "pipeline", "data", "context", "expert", "chunks", "seq",
                     "micro_batch", "micro_batches"):  # fmt: skip
            value = getattr(self, name)
            if not 0 < value <= _MOST << 4:
                raise ConfigError(f"{name.replace('_', ' ')} {value} is not possible; 1 or more")
        if not 0 <= self.zero <= _STAGES:
            raise ConfigError(f"ZeRO has stages 0 to 3, not {self.zero}")
        if self.recompute not in RECOMPUTE:
            raise ConfigError(f"recompute is one of {', '.join(RECOMPUTE)}, not {self.recompute}")
        if self.chunks > 1 and self.pipeline == 1:
            raise ConfigError("chunks need a pipeline with more than one stage")

    @property
    def ranks(self) -> int:
        return self.tensor * self.pipeline * self.data * self.context

    @property
    def shards(self) -> int:
        """Number of ranks that have the same weights, over which ZeRO divides its states."""
        return self.data * self.context

    @property
    def expert_shards(self) -> int:
        """Number of ranks that have the same experts, over which ZeRO divides their states."""
        return self.shards // self.expert

    @property
    def tokens(self) -> int:
        """Number of tokens in a micro-batch on a rank, before tensor parallel division."""
        return -(-self.micro_batch * self.seq // self.context)

    @property
    def split(self) -> int:
        """Number of ranks over which activations of norms and dropout are divided."""
        return self.tensor if self.sequence_parallel else 1

    def layers_of(self, stage: int, layers: int) -> range:
        """Return the indices of the layers on a pipeline stage that is not interleaved."""
        each, more = divmod(layers, self.pipeline)
        first = stage * each + min(stage, more)
        return range(first, first + each + (stage < more))

    def in_flight(self, stage: int) -> float:
        """Return the largest number of micro-batches whose activations a pipeline stage stores.

        With the 1F1B schedule it is the number of stages from this stage to the last (Narayanan et
        al. 2021, section 2.2); interleaved stages store more (Korthikanti et al., 4.2.3).
        """
        depth: float = self.pipeline - stage
        if self.chunks > 1:
            warm = (self.pipeline - stage - 1) * 2 + (self.chunks - 1) * self.pipeline + 1
            depth = warm / self.chunks
        return min(depth, float(self.micro_batches))


def refuse_impossible(shape: TransformerShape, layout: ParallelLayout) -> None:
    """Raise ConfigError if a model of this shape cannot be divided as `layout` requires."""
    t, p = layout.tensor, layout.pipeline
    is_split = max(t, p, layout.context) > 1
    if shape.encoder is not None and (is_split or layout.recompute not in ("none", "full")):
        raise ConfigError(
            "the formula of a model with an encoder has no tensor, pipeline and context "
            "parallelism, and recomputes whole layers or none"
        )
    if shape.heads % t:
        raise ConfigError(f"{t} tensor parallel ranks do not divide {shape.heads} heads")
    if p * layout.chunks > shape.layers:
        stages = p * layout.chunks
        raise ConfigError(f"{stages} pipeline stages are more than {shape.layers} layers")
    if layout.expert > 1 and not shape.experts:
        raise ConfigError("expert parallelism is for models with experts")
    if layout.expert > 1 and shape.experts % layout.expert:
        raise ConfigError(
            f"{layout.expert} expert parallel ranks do not divide {shape.experts} experts"
        )
    if layout.shards % layout.expert:
        raise ConfigError(
            f"{layout.expert} expert parallel ranks do not divide the {layout.shards} data and "
            "context parallel ranks"
        )
