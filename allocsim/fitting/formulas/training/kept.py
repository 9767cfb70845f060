"""Tensors that a layer saves for backward, and classes that describe the memory of one GPU (rank).

A tensor that several operations save is counted once.  Of a tensor that is divided over ranks, only
the part on one rank is counted.
"""

# For GPT's layer with dropout and fused kernels the sum equals sbh(34 + 5as/h) of Korthikanti et
# al., "Reducing Activation Recomputation" (2022), for s tokens, b sequences, hidden size h and a
# heads; a test checks this.

from __future__ import annotations

from dataclasses import dataclass

from allocsim.fitting.formulas.sizes import Linear
from allocsim.fitting.formulas.training.encoders import EncodedLayer
from allocsim.fitting.formulas.training.layout import ParallelLayout, TransformerShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Bytes per parameter, and per element of activations, during training.

    weights, gradients: bytes per parameter.
    optimizer: bytes of optimizer state per parameter, including 32-bit copies of 16-bit weights.
    compute: bytes per element of activations.
    quantised: (stored bytes of all weights, bytes of the largest quantised tensor after conversion
        to 16 bits); None if no weights are quantised.
    reference: bytes per parameter of a frozen reference model; 0 without one.
    """

    weights: int = 2
    gradients: int = 2
    optimizer: float = 12
    compute: int = 2
    quantised: tuple[int, int] | None = None
    reference: int = 0


MIXED = Precision()
"""Mixed precision: 16-bit weights and gradients with Adam in 32 bits, the 2 + 2 + 12 bytes of the
ZeRO paper."""


@dataclass(frozen=True, slots=True)
class RankPart:
    """One use of the memory of a GPU (rank), such as weights or gradients.

    size: bytes.
    arithmetic: computation of `size`, as text for the user.
    """

    name: str
    size: int
    arithmetic: str


@dataclass(frozen=True, slots=True)
class Rank:
    """Memory of one GPU (rank) of a pipeline stage at its peak.

    stage: index of the pipeline stage.
    moment: moment of the peak in a training step, such as "backward of a layer".
    parameters: number of parameters of the rank before ZeRO divides them.
    parts: uses of memory at the moment of the peak.
    """

    stage: int
    moment: str
    parameters: int
    parts: tuple[RankPart, ...]

    @property
    def allocated(self) -> int:
        return sum(part.size for part in self.parts)


@dataclass(frozen=True, slots=True)
class PairLogits:
    """Bytes per logit in a training on pairs of sequences with a reference model, such as DPO.

    The trained model and the reference each run a forward pass, and both logits get 32 bits.

    kept: bytes that the forward pass of the trained model keeps for its backward pass.
    most: largest number of bytes after the forward pass of the reference.
    chunk: number of further tokens to count with `most` bytes per logit, for temporary copies.
    """

    kept: int
    most: int
    chunk: int


BY_SEQUENCE = PairLogits(kept=4, most=12, chunk=128)
"""TRL: logits of both models, and a copy for the entropy, computed 128 tokens at a time."""
WHOLE_SOFTMAX = PairLogits(kept=8, most=20, chunk=0)
"""LLaMA-Factory, torchtune: logits and log-softmax of both models, and a contiguous copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Practice:
    """Properties of training software, such as Megatron, that decide which tensors exist.

    name: name of the software.
    gated, plain: number of tensors with the MLP's width that are saved for backward, by an MLP with
        a gate (gated) and without a gate (plain).
    norm_in_fp32: True if a norm saves its input in 32 bits, and also the normalized input.
    logits: bytes per logit while the loss is computed; None if there is only one tensor of logits,
        in the type of activations, which is overwritten by its gradient.
    split_logits: the same for logits that are divided over tensor parallel ranks.
    weight_gradients: True if backward of a layer also needs a temporary 16-bit gradient of each
        weight, in addition to the accumulated gradient (Transformer Engine, from 2.0 on).
    foreach: True if the optimizer's step temporarily needs another copy of the parameters.
    keeps_gradients: True if gradients stay allocated between steps; False if they are None until
        the backward pass computes them.
    casts: True if hidden states have 32 bits and each linear layer saves its own 16-bit copy
        (autocast); this is counted only for models with an encoder.
    pairs: memory of logits in a training on pairs of sequences (DPO); None in other trainings.
    """

    name: str
    gated: int
    plain: int
    norm_in_fp32: bool
    logits: int | None
    split_logits: int | None
    weight_gradients: bool
    foreach: bool
    keeps_gradients: bool
    casts: bool = False
    pairs: PairLogits | None = None


FUSED = Practice(
    name="fused",
    gated=3,
    plain=2,
    norm_in_fp32=False,
    logits=None,
    split_logits=None,
    weight_gradients=True,
    foreach=False,
    keeps_gradients=True,
)
"""Megatron Core with Transformer Engine: one kernel each for norm, MLP activation and loss."""
EAGER = Practice(
    name="eager",
    gated=4,
    plain=5,
    norm_in_fp32=True,
    logits=12,
    split_logits=16,
    weight_gradients=False,
    foreach=True,
    keeps_gradients=False,
)
"""Eager PyTorch, as in transformers: one kernel for each operation.

RMSNorm computes in 32 bits.  SiLU and its product with the up projection are separate operations,
and so are the terms of GPT-2's GELU.  The loss needs 32-bit tensors of the logits' shape: the
log-softmax, two gradients and, with `loss_parallel` of torch.distributed, another temporary tensor.
"""


def logits_of_pairs(
    shape: TransformerShape, tokens: int, pairs: PairLogits, precision: Precision
) -> RankPart:
    """Return the peak memory of the logits in a training on pairs with a reference model (DPO).

    The peak is during the forward pass of the reference or after it.
    """
    item, vocabulary = precision.compute, shape.vocabulary
    # Autocast converts a frozen weight of 32 bits whenever it is used.
    frozen = precision.reference or precision.weights
    converted = shape.embedding * item * (item < frozen)
    during = tokens * vocabulary * (pairs.kept + item) + converted
    rows = tokens + pairs.chunk
    after = rows * vocabulary * pairs.most
    how = f"{rows:,} tokens x {vocabulary:,} x {pairs.most} bytes"
    if during > after:
        how = f"{tokens:,} tokens x {vocabulary:,} x {pairs.kept + item} bytes, "
        how += f"and {converted:,} bytes of the reference's output layer, converted"
    return RankPart("logits of both models", max(during, after), how)


def kept_of_layer(
    shape: TransformerShape, layout: ParallelLayout, layer: int, practice: Practice, item: int = 2
) -> dict[str, float]:
    """Return the bytes that a layer saves for backward on one rank, keyed by kind, such as "MLP".

    The bytes are for one micro-batch.  Activation checkpointing is ignored, except that with
    "selective" no attention scores are saved.

    layer: index of the layer, counted from 0.
    practice: properties of the training software.
    item: bytes of an element of activations.
    """
    if shape.encoder is not None:
        return EncodedLayer(shape, layout, item, practice.casts).kept()
    common = layout.tokens / layout.split
    split = layout.tokens / layout.tensor
    kept = {
        "norms and inputs of linear layers": common * _norms(shape, practice, item),
        "attention": split * _attention(shape, layout, practice, item),
        "MLP": split * item * _mlp(shape, layer, practice),
    }
    if shape.latent is not None:
        kept["projections to latents"] = common * item * _latent(shape)
    if shape.has_experts(layer):
        kept["tokens sent to experts"] = split * item * shape.width * shape.chosen
        kept["router"] = common * 4 * shape.experts
    if shape.dropout:
        kept["dropout masks"] = common * 2 * shape.width
    if shape.masked and layout.flash:
        kept["attention masks"] = common * item * layout.seq
    if shape.adapted:
        kept["inputs of adapters"] = common * _adapter_inputs(shape, layer, item)
    if shape.adapts_experts and shape.has_experts(layer):
        # peft adds the adapters to a copy of all experts, which backward needs.
        kept["copies of experts"] = item * shape.experts * shape.expert / layout.tensor
    if not layout.flash and shape.linear is None and layout.recompute != "selective":
        kept["attention scores"] = split * _scores(shape, layout, practice, item)
    return kept


def _adapter_inputs(shape: TransformerShape, layer: int, item: int) -> float:
    # peft keeps adapters in 32 bits, so each module saves its own 32-bit copy of its input. Frozen
    # linear layers and norms do not save theirs, hence the subtraction.
    # With activations in 32 bits, modules share their input.
    wide = {wide for wide, _ in shape.adapted} if item == _WIDE else [w for w, _ in shape.adapted]
    own = sum(wide) + shape.lora * len(shape.adapted)
    norms = 1 if shape.norms_at_once else 2
    product = 0 if shape.has_experts(layer) else shape.inner
    return 4.0 * own - item * (norms * shape.norms * shape.width + product)


_WIDE = 4


def _norms(shape: TransformerShape, practice: Practice, item: int) -> float:
    unfused = practice.norm_in_fp32 and not (shape.has_biases or shape.norms_at_once)
    each = 4 + 2 * item if unfused else 2 * item
    more = (shape.norms - 2) * (each - item)
    return shape.width * (2.0 * each + more)


def _attention(
    shape: TransformerShape, layout: ParallelLayout, practice: Practice, item: int
) -> float:
    if (linear := shape.linear) is not None:
        return _linear(linear, item)
    # The last term is the flash kernel's sums, in 32 bits.
    if (latent := shape.latent) is not None:
        whole = shape.head + latent.turning
        # The values are a view of the tensor with keys and values, which is kept as a whole.
        wide = shape.heads * (2 * whole + (shape.head + latent.value) + latent.value)
    else:
        wide = 2 * shape.heads * shape.head + 2 * shape.kv_width
        wide += (shape.heads * shape.head + shape.kv_width) * shape.views_values
    if layout.context > 1 and not practice.norm_in_fp32:
        # The experts' output is also saved before it is sent back to the ranks of its tokens.
        wide += shape.heads * shape.head
    return item * wide + 4.0 * shape.heads * layout.flash


_CHUNK = 64
"""Number of tokens in a chunk of transformers' chunk_gated_delta_rule, which computes linear
attention with PyTorch operations alone."""


def _linear(linear: Linear, item: int) -> float:
    # Per token: 8 tensors of keys and queries, 3 of values, 5 of products within a chunk, and a
    # state for each chunk, in 32 bits; then the gate and norm, and the convolution.
    heads, each = linear.value_heads, linear.key * linear.value
    wide = 8 * linear.key + 3 * linear.value + 5 * _CHUNK + each / _CHUNK
    gate = heads * linear.value * (12 + 3 * item)
    return 4 * heads * wide + gate + 2 * item * linear.mixed


def _latent(shape: TransformerShape) -> float:
    # The compressed vectors are saved before and after their norms.
    latent = shape.latent
    assert latent is not None
    return 2.0 * latent.query + 2 * latent.key_value + latent.turning


def _mlp(shape: TransformerShape, layer: int, practice: Practice) -> float:
    factor = practice.gated if shape.is_gated else practice.plain
    if shape.has_experts(layer):
        return float(factor) * (shape.expert_inner * shape.chosen + shape.shared_inner)
    return float(factor) * shape.inner


def _scores(
    shape: TransformerShape, layout: ParallelLayout, practice: Practice, item: int
) -> float:
    # Eager PyTorch keeps the softmax in 32 bits and again in 16 bits.
    softmax = 4 + item if practice.norm_in_fp32 and item < 4 else item
    each = softmax + (1 + item) * shape.dropout
    return float(each) * shape.heads * layout.seq


def operations_kept(shape: TransformerShape, layout: ParallelLayout, item: int) -> float:
    """Return the bytes that a layer saves with torchtitan's selective activation checkpointing.

    item: bytes of an element of activations.
    """
    queries = shape.heads * shape.head
    wide = queries + shape.kv_width + queries + shape.inner + shape.width
    return layout.tokens * item * (shape.width / layout.split + wide / layout.tensor)
