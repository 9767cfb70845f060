"""What a layer keeps for backward, tensor by tensor.

Rule: a tensor is counted where an operation saves it, once, by its size on this rank.  With GPT's
layer, dropout and fused kernels that is the papers' sbh(34 + 5as/h), which a test holds; other
layers (gated MLPs, fewer key and value heads, latent attention, experts, unfused norms) differ from
it, and that difference is why this file exists.
"""

from __future__ import annotations

from dataclasses import dataclass

from allocsim.estimate.training.layout import Layout
from allocsim.estimate.training.shape import Shape

__all__ = ["EAGER", "FUSED", "Practice", "kept_of_layer", "operations_kept"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Practice:
    """How the operations are written.

    gated, plain: tensors as wide as the MLP that it keeps, with a gate and without.
    norm_in_fp32: a norm keeps its input in 32 bits and the normalized input besides.
    logits: bytes for each logit when the loss is computed; None for one activation, which its
    gradient overwrites.  split_logits: where tensor parallel ranks share them.
    weight_gradients: backward leaves a 16-bit tensor as large as each of a layer's weights, because
    the sums are made elsewhere (Transformer Engine with accumulated gradients, from 2.0 on).
    foreach: the optimizer's step needs another copy of its parameters.
    keeps_gradients: between steps; else they are set to None, and there is none until a layer's
    backward.
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
"""Megatron Core with Transformer Engine: norms, the MLP's activation and the loss are one kernel
each."""
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
"""PyTorch operation by operation, as transformers has it: RMSNorm in 32 bits, SiLU and product
apart (GPT-2's GELU from its formula), the loss on 32-bit logits: log-softmax and two gradients,
and a temporary more in `loss_parallel` of torch.distributed."""


def kept_of_layer(
    shape: Shape, layout: Layout, layer: int, practice: Practice, item: int = 2
) -> dict[str, float]:
    """Bytes by what they are that layer `layer` keeps of one micro-batch, nothing computed again.

    item: bytes of an activation.
    """
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
    if not layout.flash and layout.recompute != "selective":
        kept["attention scores"] = split * _scores(shape, layout, practice, item)
    return kept


def _norms(shape: Shape, practice: Practice, item: int) -> float:
    """Bytes a token: each norm's input, and its output, which a linear layer keeps."""
    unfused = practice.norm_in_fp32 and not shape.has_biases
    each = 4 + 2 * item if unfused else 2 * item
    more = (shape.norms - 2) * (each - item)
    return shape.width * (2.0 * each + more)


def _attention(shape: Shape, layout: Layout, practice: Practice, item: int) -> float:
    """Bytes a token: queries, keys, values, the output, and the kernel's sums in 32 bits."""
    if (latent := shape.latent) is not None:
        whole = shape.head + latent.turning
        # The values are a view of what keys and values are made of, which stays whole.
        wide = shape.heads * (2 * whole + (shape.head + latent.value) + latent.value)
    else:
        wide = 2 * shape.heads * shape.head + 2 * shape.key_value
    if layout.context > 1 and not practice.norm_in_fp32:
        # Its output before it is sent back to the ranks of its tokens is kept as well.
        wide += shape.heads * shape.head
    return item * wide + 4.0 * shape.heads * layout.flash


def _latent(shape: Shape) -> float:
    """Elements a token: both latents, before and after their norms."""
    latent = shape.latent
    assert latent is not None
    return 2.0 * latent.query + 2 * latent.key_value + latent.turning


def _mlp(shape: Shape, layer: int, practice: Practice) -> float:
    """Elements a token."""
    factor = practice.gated if shape.is_gated else practice.plain
    if shape.has_experts(layer):
        return float(factor) * (shape.expert_inner * shape.chosen + shape.shared_inner)
    return float(factor) * shape.inner


def _scores(shape: Shape, layout: Layout, practice: Practice, item: int) -> float:
    """Bytes a token: softmax, its mask of dropout and what dropout made of it; in eager PyTorch the
    softmax is in 32 bits, and again in 16."""
    softmax = 4 + item if practice.norm_in_fp32 and item < 4 else item
    each = softmax + (1 + item) * shape.dropout
    return float(each) * shape.heads * layout.seq


def operations_kept(shape: Shape, layout: Layout, item: int) -> float:
    """Bytes of a layer with `recompute` "ops": its input, attention's output, and the results of
    its first, third, fifth and seventh matrix product (torchtitan's policy)."""
    queries = shape.heads * shape.head
    wide = queries + shape.key_value + queries + shape.inner + shape.width
    return layout.tokens * item * (shape.width / layout.split + wide / layout.tensor)
