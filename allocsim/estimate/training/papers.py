"""What the papers say, each formula as it is printed, with its place in the paper.

Rule: nothing is added to a formula and nothing left out; sizes are bytes, 16-bit activations as the
papers have them.  What a real program keeps besides is `kept.py`'s to say.

Sources: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models"
(arXiv 2205.05198); Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion
Parameter Models" (arXiv 1910.02054); Megatron Core's user guide, "Distributed Optimizer".  Letters
are the papers': s tokens, b sequences of a micro-batch, h width, a heads, t tensor parallel size,
p pipeline stages, m model chunks of a stage, L layers, v vocabulary, d data parallel size.
"""

from __future__ import annotations

__all__ = [
    "edge_activations",
    "first_stage_activations",
    "interleaving_factor",
    "layer_activations",
    "megatron_bytes",
    "zero_states",
]


def layer_activations(
    s: int,
    b: int,
    h: int,
    a: int,
    t: int = 1,
    *,
    sequence_parallel: bool = False,
    recompute: str = "none",
    flash: bool = False,
) -> float:
    """Bytes that one layer keeps for backward (Korthikanti et al., equations 1, 2, 4, 6; table 2).

    recompute: "none", "selective" (the attention core is computed again) or "full" (only the
    layer's input is kept, 2sbh whatever t is).
    flash: the attention kernel computes scores again by itself, so that their term goes, as with
    "selective"; the paper is older than those kernels.
    """
    if recompute == "full":
        return 2.0 * s * b * h
    scores = 0.0 if flash or recompute == "selective" else 5 * a * s / h
    if sequence_parallel:
        return s * b * h / t * (34 + scores)
    return s * b * h * (10 + 24 / t + scores / t)


def interleaving_factor(p: int, m: int) -> float:
    """By how much interleaving multiplies the first stage's activations (section 4.2.3)."""
    return 1 + (p - 1) / (p * m)


def first_stage_activations(layer: float, layers: int, p: int = 1, m: int = 1) -> float:
    """Bytes of the stage that keeps most, the first (equation 5).

    It keeps p micro-batches of L/p layers: L layers' worth.  m > 1: with interleaving, more.
    """
    return layer * layers * (interleaving_factor(p, m) if m > 1 else 1.0)


def edge_activations(s: int, b: int, h: int, v: int, *, t: int = 1, p: int = 1) -> float:
    """Bytes for what stands before and after the layers, on the first stage (section 4.3).

    The dropout mask of the embeddings for each of p micro-batches; and where there is one stage
    only, the inputs of the last norm and of the output layer, and the logits in 32 bits.
    """
    embeddings = s * b * h * p / t
    output = 4 * s * b * h / t * (1 + v / h) if p == 1 else 0.0
    return embeddings + output


def zero_states(parameters: float, d: int, stage: int, *, k: float = 12) -> float:
    """Bytes of weights, gradients and optimizer state on a rank (ZeRO, section 5, figure 1).

    2 bytes a parameter for weights and gradients each, k for the optimizer: 12 of Adam in mixed
    precision (32-bit weights, momentum, variance).  stage 1 shares the optimizer's among d ranks,
    stage 2 the gradients too, stage 3 the weights too.
    """
    weights, gradients = 2.0, 2.0
    if stage >= 1:
        k /= d
    if stage >= 2:
        gradients /= d
    if stage >= 3:
        weights /= d
    return parameters * (weights + gradients + k)


def megatron_bytes(weights: str, gradients: str, d: int | None = None) -> float:
    """Bytes a parameter in Megatron, by the types of weights and gradients ("16bit", "fp32").

    d: the ranks that share the optimizer (its distributed optimizer); None without one.  The table
    of Megatron Core's guide: 20 and 4+16/d, 18 and 6+12/d, 16 and 8+8/d.
    """
    whole, shared = {
        ("16bit", "16bit"): (4, 16),
        ("16bit", "fp32"): (6, 12),
        ("fp32", "fp32"): (8, 8),
    }[weights, gradients]
    return whole + shared / (d or 1)
