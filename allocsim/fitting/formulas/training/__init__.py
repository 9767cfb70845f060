"""Memory of parallel training by formula: formulas of papers, and the tensors of each rank."""

from allocsim.fitting.formulas.training.kept import EAGER, FUSED, Practice, kept_of_layer
from allocsim.fitting.formulas.training.layout import RECOMPUTE, ParallelLayout, refuse_impossible
from allocsim.fitting.formulas.training.papers import (
    edge_activations,
    first_stage_activations,
    interleaving_factor,
    layer_activations,
    megatron_bytes,
    zero_states,
)
from allocsim.fitting.formulas.training.parts import MIXED, Precision, Rank, RankPart
from allocsim.fitting.formulas.training.rank import Training, rank_memory, worst_rank
from allocsim.fitting.formulas.training.shape import TransformerShape, shape_for

__all__ = [
    "EAGER", "FUSED", "MIXED", "ParallelLayout", "Practice", "Precision", "RECOMPUTE",
    "Rank", "RankPart", "Training", "TransformerShape", "edge_activations",
    "first_stage_activations", "interleaving_factor", "kept_of_layer", "layer_activations",
    "megatron_bytes", "rank_memory", "refuse_impossible", "shape_for", "worst_rank",
    "zero_states",
]  # fmt: skip
