"""What a model needs by formula: weights, caches, what serving engines take; nothing is run."""

from allocsim.estimate.blocks import BLOCKS, Block, bytes_in
from allocsim.estimate.mixtures import BASES, kind_of
from allocsim.estimate.shapes import FAMILIES, Shape, Sizes, parameters_of, shapes_of, sizes_of
from allocsim.estimate.weights import FORMATS, Stored, Weights, weights_of

__all__ = [
    "BASES", "BLOCKS", "Block", "FAMILIES", "FORMATS", "Shape", "Sizes", "Stored", "Weights",
    "bytes_in", "kind_of", "parameters_of", "shapes_of", "sizes_of", "weights_of",
]  # fmt: skip
