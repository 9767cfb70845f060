"""Weights of a network, and the requests of its layers on the allocator model.

Each network is one function that makes the requests and frees of its forward pass. Without an
allocator the same function lists the weights, so both follow from one description.
"""

# Workspaces: cuDNN converts a 3 x 3 convolution in 16 bits to channels-last, so its workspace holds
# input, output and weights; in 32 bits it holds no output before Hopper (plans for an RTX 4090, an
# RTX 3060, a T4 and an H100). Scales of 4 bits: `bitsandbytes`, as in `formulas/weights.py`.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from allocsim.core import CachingAllocator

Config = Mapping[str, Any]

_FEWEST_CHANNELS = 8
"""Fewest input channels for which cuDNN converts a convolution to channels-last."""
_BITS = {"fp8": 8, "int8": 8, "nf4": 4, "nf4-double": 4}
_PER_BLOCK = {"nf4": 4.0, "nf4-double": 1 + 4 / 256}
"""Bytes of scales of each 64 weights."""


@dataclass(frozen=True, slots=True)
class Weight:
    """Tensor of weights.

    is_linear: True for the matrix of a linear module, which can be quantised.
    is_wide: True if transformers keeps it in 32 bits beside weights in fp16 or bitsandbytes'.
    is_buffer: True if it is no parameter.
    """

    elements: int
    is_linear: bool = False
    is_wide: bool = False
    is_buffer: bool = False

    def size(self, each: int, quant: str, *, widens: bool) -> int:
        """Return the bytes of the tensor.

        each: bytes of an element that is not quantised.
        quant: format of linear modules, or "".
        widens: True if 16 bits are fp16.
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
    """Simulated process that runs networks; results of its methods are addresses.

    gpu: allocator, or None while the weights are listed.
    each: bytes of an element of activations.
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
        """Return a new tensor, after which the old one is freed."""
        new = self.take(elements)
        self.free(old)
        return new

    def repeated(self, count: int) -> range:
        """Return the indices of equal layers to run: the first two make the peak."""
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
