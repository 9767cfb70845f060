"""Formulas for the memory of parallel training: sums over the tensors on each rank."""

from allocsim.fitting.formulas.training.kept import (
    BY_SEQUENCE,
    EAGER,
    FUSED,
    MIXED,
    WHOLE_SOFTMAX,
    Precision,
    Rank,
    RankPart,
    kept_of_layer,
)
from allocsim.fitting.formulas.training.layout import (
    ParallelLayout,
    TransformerShape,
    refuse_impossible,
    shape_for,
)
from allocsim.fitting.formulas.training.rank import Training

__all__ = [
    "BY_SEQUENCE", "EAGER", "FUSED", "MIXED", "ParallelLayout", "Precision", "Rank", "RankPart",
    "Training", "TransformerShape", "WHOLE_SOFTMAX", "kept_of_layer", "refuse_impossible",
    "shape_for",
]  # fmt: skip
