"""Weights of a network, and the allocator calls of its layers in a forward pass.

A network is described by one function.  Called with a model of PyTorch's allocator, the function
makes the requests and frees of a forward pass.  Called without an allocator, it lists the weights.
"""

# Workspaces: cuDNN converts a 3 x 3 convolution in 16 bits to channels-last, so its workspace holds
# input, output and weights. In 32 bits, on GPUs before Hopper, it holds no output. This was seen in
# cuDNN's plans for an RTX 4090, an RTX 3060, a T4 and an H100. Scales of weights in 4 bits:
# `bitsandbytes`, as in `formulas/weights.py`.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from allocsim.core import CachingAllocator

Config = Mapping[str, Any]

_FEWEST_CHANNELS = 8
"""Smallest number of input channels with which cuDNN converts a convolution to channels-last."""
_BITS = {"fp8": 8, "int8": 8, "nf4": 4, "nf4-double": 4}
_PER_BLOCK = {"nf4": 4.0, "nf4-double": 1 + 4 / 256}
"""Dictionary from a format of weights to the bytes of the scales of 64 weights."""


@dataclass(frozen=True, slots=True)
class Weight:
    """Tensor of weights.

    elements: number of elements.
    is_linear: True for the matrix of a linear module, which can be quantised.
    is_wide: True if transformers stores the tensor in 32 bits although other weights are in fp16 or
        quantised by bitsandbytes.
    is_buffer: True for a buffer of a module, False for a parameter.
    """

    elements: int
    is_linear: bool = False
    is_wide: bool = False
    is_buffer: bool = False

    def size(self, each: int, quant: str, *, widens: bool) -> int:
        """Return the bytes of the tensor.

        each: bytes of an element that is not quantised.
        quant: format of quantised linear modules; "" for none.
        widens: True if the other weights are in fp16, so that a tensor with `is_wide` has 32 bits.
        """
        if self.is_wide and (widens or quant not in ("", "fp8")):
            return 4 * self.elements
        if not quant or not self.is_linear:
            return each * self.elements
        scales = self.elements / 64 * _PER_BLOCK.get(quant, 0)
        return self.elements * _BITS[quant] // 8 + int(scales)


def taken(gpu: CachingAllocator, size: int) -> int:
    address = gpu.malloc(size)
    assert address is not None
    return address


class Network:
    """Simulated process that runs a network's layers.

    A method such as `linear` makes the allocator calls of one layer and returns the address of the
    layer's output.

    gpu: model of PyTorch's allocator; None to list the weights in `weights` instead.
    each: bytes of an element of activations.
    converts: True if cuDNN converts 3 x 3 convolutions to channels-last, so that their workspace
        also holds the output.
    dequantises: True if a linear layer first converts its weights to 16 bits.
    """

    def __init__(
        self, gpu: CachingAllocator | None, *, each: int = 2, converts: bool = True,
        dequantises: bool = False,
    ) -> None:  # fmt: skip
        self.gpu, self.each = gpu, each
        self.converts, self.dequantises = converts, dequantises
        self.weights: list[Weight] = []

    def take(self, elements: int, each: int = 0) -> int:
        if self.gpu is None:
            return 0
        return taken(self.gpu, max(elements * (each or self.each), 1))

    def free(self, *addresses: int) -> None:
        if self.gpu is not None:
            for address in addresses:
                self.gpu.free(address)

    def swap(self, old: int, elements: int) -> int:
        """Allocate a tensor, then free the tensor at address `old`; return the new address."""
        new = self.take(elements)
        self.free(old)
        return new

    def repeated(self, count: int) -> range:
        """Return the indices of the layers to simulate if the network has `count` equal layers.

        With an allocator, these are the first two, because two layers have the same peak as all.
        Without an allocator, these are all layers.
        """
        return range(count if self.gpu is None else min(count, 2))

    def weight(self, *elements: int, **kind: bool) -> None:
        if self.gpu is None:
            self.weights += [Weight(each, **kind) for each in elements if each]

    def linear(self, rows: int, width: int, out: int, *, bias: bool = True) -> int:
        self.weight(width * out, is_linear=True)
        self.weight(out * bias)
        if not self.dequantises:
            return self.take(rows * out)
        matrix = self.take(width * out)
        found = self.take(rows * out)
        self.free(matrix)
        return found

    def conv(self, rows: int, width: int, out: int, rows_out: int = 0, side: int = 3) -> int:
        self.weight(width * out * side * side, out)
        found = self.take((rows_out or rows) * out)
        if side == 3 and width >= _FEWEST_CHANNELS:
            held = rows * width + width * out * 9
            if self.converts:
                held += (rows_out or rows) * max(out, _FEWEST_CHANNELS)
            self.free(self.take(held))
        return found
