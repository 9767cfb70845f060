"""Memory formulas of the papers, as printed, with their place in the paper.

Rule: formulas are neither extended nor shortened. Sizes are bytes, with the papers' 16-bit
activations. Other tensors that a real program saves are in
`allocsim/fitting/formulas/training/kept.py`.

Sources: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models"
(arXiv 2205.05198); Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion
Parameter Models" (arXiv 1910.02054); Megatron Core's user guide, "Distributed Optimizer".

Letters are the papers': s tokens, b sequences of a micro-batch, h width, a heads, t tensor parallel
size, p pipeline stages, m model chunks of a stage, L layers, v vocabulary, d data parallel size.
"""

from __future__ import annotations


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
    """Return the bytes that one layer saves for backward.

    From Korthikanti et al., equations 1, 2, 4, 6 and table 2.

    s, b, h, a: tokens, sequences of a micro-batch, width, heads.
    t: tensor parallel size.
    recompute: "none", "selective" (the attention core is recomputed) or "full" (only the layer's
        input is saved, 2sbh for any t).
    flash: True if the attention kernel recomputes the scores, which removes their term as
        "selective" does; the paper is older than such kernels.
    """
    if recompute == "full":
        return 2.0 * s * b * h
    scores = 0.0 if flash or recompute == "selective" else 5 * a * s / h
    if sequence_parallel:
        return s * b * h / t * (34 + scores)
    return s * b * h * (10 + 24 / t + scores / t)


def interleaving_factor(p: int, m: int) -> float:
    """Return the factor by which interleaving multiplies the first stage's activations.

    From Korthikanti et al., section 4.2.3.

    p, m: pipeline stages, model chunks of a stage.
    """
    return 1 + (p - 1) / (p * m)


def first_stage_activations(layer: float, layers: int, p: int = 1, m: int = 1) -> float:
    """Return the bytes of activations on the first stage, which saves most.

    From Korthikanti et al., equation 5. The stage saves p micro-batches of L/p layers, as much as L
    layers, and more with interleaving (m > 1).

    layer: bytes of one layer, from `layer_activations`.
    p, m: pipeline stages, model chunks of a stage.
    """
    return layer * layers * (interleaving_factor(p, m) if m > 1 else 1.0)


def edge_activations(s: int, b: int, h: int, v: int, *, t: int = 1, p: int = 1) -> float:
    """Return the bytes of activations outside the layers on the first stage.

    From Korthikanti et al., section 4.3. They are the embeddings' dropout mask for each of p
    micro-batches. If there is only one stage, they are also the inputs of the last norm and the
    output layer, and the 32-bit logits.

    s, b, h, v: tokens, sequences of a micro-batch, width, vocabulary.
    t, p: tensor parallel size, pipeline stages.
    """
    embeddings = s * b * h * p / t
    output = 4 * s * b * h / t * (1 + v / h) if p == 1 else 0.0
    return embeddings + output


def zero_states(parameters: float, d: int, stage: int, *, k: float = 12) -> float:
    """Return the bytes of weights, gradients and optimizer state on a rank.

    From ZeRO, section 5, figure 1. Weights and gradients have 2 bytes per parameter each.

    d: data parallel size.
    stage: stage of ZeRO: 1 shares the optimizer state among d ranks, 2 also the gradients, 3 also
        the weights.
    k: bytes per parameter of the optimizer; 12 for Adam in mixed precision (32-bit weights,
        momentum, variance).
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
    """Return the bytes per parameter of weights, gradients and optimizer state in Megatron.

    From the table in Megatron Core's guide: 20 and 4+16/d, 18 and 6+12/d, 16 and 8+8/d.

    weights, gradients: "16bit" or "fp32".
    d: number of ranks that share the distributed optimizer, or None without it.
    """
    whole, shared = {
        ("16bit", "16bit"): (4, 16),
        ("16bit", "fp32"): (6, 12),
        ("fp32", "fp32"): (8, 8),
    }[weights, gradients]
    return whole + shared / (d or 1)
