"""What a model needs by formula: weights, caches, what serving engines take; nothing is run."""

from allocsim.estimate.blocks import BLOCKS, NUMBERS, Block, bytes_in
from allocsim.estimate.gguf import Gguf, gguf_sizes, read_gguf
from allocsim.estimate.mixtures import BASES, kind_of
from allocsim.estimate.safetensors import StoredTensor, read_safetensors
from allocsim.estimate.shapes import FAMILIES, Shape, Sizes, parameters_of, shapes_of, sizes_of
from allocsim.estimate.weights import FORMATS, Stored, Weights, weights_of

__all__ = [
    "BASES", "BLOCKS", "Block", "FAMILIES", "FORMATS", "Gguf", "NUMBERS", "Shape", "Sizes",
    "Stored", "StoredTensor", "Weights", "bytes_in", "gguf_sizes", "kind_of", "parameters_of",
    "read_gguf", "read_safetensors", "shapes_of", "sizes_of", "weights_of",
]  # fmt: skip
